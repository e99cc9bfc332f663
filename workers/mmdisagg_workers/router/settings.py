"""What the router is told at start: command line and environment, read once.

Environment: `MMDISAGG_STAGE_TOKEN` (the deployment's secret, sent with each leg) and `MMDISAGG_MEDIA`
(JSON with `limits`, the same that the engines get).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from mmdisagg_workers.contract import DecodeForm

from .topology import Role, Topology, topology_of

STAGE_TOKEN_VARIABLE: Final = "MMDISAGG_STAGE_TOKEN"  # noqa: S105  # a name, no secret
MEDIA_VARIABLE: Final = "MMDISAGG_MEDIA"
TEXT_BYTES: Final = 4 * 1024 * 1024
"""Room for everything in a body that is no medium."""


class SettingsError(ValueError):
    """The router cannot start with these settings; the message says which and why."""


class MediaLimits(Struct, frozen=True):
    """What one request may carry.

    Attributes:
        images: pictures per request.
        videos: videos per request.
        bytes: bytes per medium.
        pixels: pixels per picture or frame, also after a client's processor arguments.
    """

    images: Annotated[int, Meta(ge=0)] = 8
    videos: Annotated[int, Meta(ge=0)] = 1
    bytes: Annotated[int, Meta(ge=1)] = 20 * 1024 * 1024
    pixels: Annotated[int, Meta(ge=1)] = 40_000_000

    @property
    def body_bytes(self) -> int:
        """The largest body that keeps the limits: every medium inline in base64, and text."""
        return (self.images + self.videos) * (self.bytes * 4 // 3 + 1024) + TEXT_BYTES


class _Media(Struct):
    limits: MediaLimits = MediaLimits()


@dataclass(frozen=True)
class Deadlines:
    """How long the router waits, in seconds.

    Attributes:
        connect: until a connection to an engine stands.
        stage: until an encode or prefill leg is answered, or decode's stream begins.
        idle: between two pieces of decode's stream.
        request: for the request as a whole, its stream included.
    """

    connect: float = 5.0
    stage: float = 300.0
    idle: float = 120.0
    request: float = 600.0


@dataclass(frozen=True)
class Settings:
    """Everything the router is told.

    Attributes:
        model: name under which clients ask for the model.
        endpoints: base URLs per role.
        decode_form: the form chosen by the resource, or None for the family's default.
        token: the stage token, or "" when the engines check none.
        limits: media limits.
        deadlines: how long to wait.
    """

    model: str
    endpoints: Mapping[Role, tuple[str, ...]]
    decode_form: DecodeForm | None = None
    token: str = field(default="", repr=False)
    limits: MediaLimits = field(default_factory=MediaLimits)
    deadlines: Deadlines = Deadlines()

    @property
    def topology(self) -> Topology:
        """The topology that the given roles make."""
        return topology_of([role for role, urls in self.endpoints.items() if urls])


def limits_from(environment: Mapping[str, str]) -> MediaLimits:
    """Read the media limits.

    Raises:
        SettingsError: the variable is no JSON of the expected shape.
    """
    text = environment.get(MEDIA_VARIABLE) or "{}"
    try:
        return msgspec.json.decode(text, type=_Media).limits
    except msgspec.DecodeError as error:
        raise SettingsError(f"{MEDIA_VARIABLE}: {error}") from None
