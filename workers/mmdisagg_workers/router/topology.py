"""Which roles a deployment has, and which of them fetches media."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum


class Role(StrEnum):
    """A set of engines that do one stage of a request."""

    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"


class Topology(StrEnum):
    """The roles of a deployment."""

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
        ValueError: decode is missing.
    """
    for topology in Topology:
        if set(topology.roles) == set(roles):
            return topology
    raise ValueError(
        f"roles {sorted(roles)} make no topology: decode is needed in each of {', '.join(Topology)}"
    )
