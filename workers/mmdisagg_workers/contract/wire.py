"""What router and workers must spell alike: roles, topologies, names on the wire, and limits of media.

The operator's plan sets the same variables and may not import this; a test compares both.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from .errors import ContractError

INFO_PATH: Final = "/mmdisagg/v1/info"
"""Where a worker tells its `ModelInfo`."""
STAGE_TOKEN_HEADER: Final = "x-mmdisagg-stage-token"  # noqa: S105  # a name, no secret
"""Header by which the router shows that it is the deployment's own."""

STAGE_TOKEN: Final = "MMDISAGG_STAGE_TOKEN"  # noqa: S105  # a name, no secret
"""Variable with the deployment's secret: the router sends it, workers ask for it."""
TOPOLOGY: Final = "MMDISAGG_TOPOLOGY"
"""Variable with a worker's `Topology`."""
FAMILY: Final = "MMDISAGG_FAMILY"
"""Variable with the name of the model's family, or `Auto`."""
REVISION: Final = "MMDISAGG_REVISION"
"""Variable with the hash of what must agree between engines."""
MEDIA: Final = "MMDISAGG_MEDIA"
"""Variable with JSON: `limits` (a `MediaLimits`), and for workers `allowedHosts`, `allowPrivateNetworks`."""

TEXT_BYTES: Final = 4 * 1024 * 1024
"""Room for everything in a client's body that is no inline medium."""
PART_BYTES: Final = 1024
"""Room for what surrounds an inline medium: the part's JSON, and the beginning of its data URL."""
LEG_BYTES: Final = 4 * 1024 * 1024
"""Room in a leg for what the router adds: prompt token ids, descriptors, transfer parameters."""


class Role(StrEnum):
    """What an engine does with a request."""

    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"
    """All of it, beside a deployment; where decode does everything, such an engine can be its decode."""


STAGES: Final = (Role.ENCODE, Role.PREFILL, Role.DECODE)
"""The roles of deployments, in the order in which a request passes them."""


class Topology(StrEnum):
    """Which roles a deployment has."""

    E_P_D = "E/P/D"
    E_PD = "E/PD"
    EP_D = "EP/D"
    PD = "PD"

    @property
    def encodes_apart(self) -> bool:
        """Whether a role of its own encodes media."""
        return self in (Topology.E_P_D, Topology.E_PD)

    @property
    def hands_over_kv(self) -> bool:
        """Whether prefill and decode are engines of their own."""
        return self in (Topology.E_P_D, Topology.EP_D)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles in the order in which a request passes them."""
        encode = (Role.ENCODE,) if self.encodes_apart else ()
        prefill = (Role.PREFILL,) if self.hands_over_kv else ()
        return (*encode, *prefill, Role.DECODE)


def topology_of(roles: Collection[Role]) -> Topology:
    """Return the topology that has exactly these roles.

    Raises:
        ValueError: there is none.
    """
    for topology in Topology:
        if set(topology.roles) == set(roles):
            return topology
    raise ValueError(
        f"roles {sorted(roles)} make no topology: decode is needed in each of {', '.join(Topology)}"
    )


@dataclass(frozen=True, kw_only=True)
class MediaLimits:
    """What one request may carry.

    Attributes:
        images: pictures per request.
        videos: videos per request.
        bytes: bytes per medium.
        pixels: pixels per picture or frame, also after a client's processor arguments.

    Raises:
        ContractError: a limit is no integer, or negative.
    """

    images: int = 8
    videos: int = 1
    bytes: int = 20 * 1024 * 1024
    pixels: int = 40_000_000

    def __post_init__(self) -> None:
        """Check each limit."""
        for field in fields(MediaLimits):
            value = getattr(self, field.name)
            if type(value) is not int or value < 0:
                raise ContractError(f"limits.{field.name}", value, "give an integer, 0 or more")

    @property
    def body_bytes(self) -> int:
        """The largest chat that keeps the limits: every medium inline in base64, and text."""
        base64 = -(-self.bytes // 3) * 4
        return (self.images + self.videos) * (base64 + PART_BYTES) + TEXT_BYTES

    def leg_bytes(self, *, raw: bool) -> int:
        """The largest leg that the router builds from such a chat.

        Args:
            raw: whether media travel in it, or only descriptions of them.
        """
        return (self.body_bytes if raw else TEXT_BYTES) + LEG_BYTES
