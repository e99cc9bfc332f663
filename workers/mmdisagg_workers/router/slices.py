"""EndpointSlices: from Kubernetes' objects to addresses of engines. Pure.

The operator makes one headless Service per role and revision; its labels appear on its slices
(`discovery.k8s.io/v1`). An endpoint takes new legs while it is ready and is not about to end.
https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/: absent conditions count as good, an
endpoint may stand in several slices for a while, and a dual-stack Service has slices of both kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import Struct

from mmdisagg_workers.contract import STAGES, Role

from .api_server import bracketed
from .endpoints import Address
from .engines import Discovered

DEPLOYMENT_LABEL: Final = "mmdisagg.io/deployment"
ROLE_LABEL: Final = "mmdisagg.io/role"
REVISION_LABEL: Final = "mmdisagg.io/revision"
PORT_NAME: Final = "http"
_ADDRESS_TYPES: Final = ("IPv4", "IPv6")


class Conditions(Struct, frozen=True):
    """What is known of an endpoint's state; None where it is not."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None

    @property
    def usable(self) -> bool:
        """Whether new legs may go there."""
        return self.ready is not False and self.serving is not False and not self.terminating


class Target(Struct):
    """The pod behind an endpoint."""

    uid: str = ""


class SliceEndpoint(Struct, rename="camel"):
    """One pod's entry."""

    addresses: list[str] = []
    conditions: Conditions = Conditions()
    target_ref: Target | None = None


class Port(Struct):
    """One port of all entries."""

    name: str | None = None
    port: int | None = None


class Metadata(Struct, rename="camel"):
    """What identifies a slice; a bookmark's has no time, which Kubernetes before 1.34 writes as null."""

    name: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    labels: dict[str, str] = {}


class Slice(Struct, rename="camel"):
    """The parts of an EndpointSlice that discovery reads."""

    metadata: Metadata
    address_type: str = "IPv4"
    endpoints: list[SliceEndpoint] | None = None
    ports: list[Port] | None = None


class _ListMetadata(Struct, rename="camel"):
    resource_version: str


class SliceList(Struct):
    """The answer to a list."""

    metadata: _ListMetadata
    items: list[Slice]


def selector(deployment: str) -> str:
    """Return the label selector of a deployment's slices, without those of Services of no revision."""
    return f"{DEPLOYMENT_LABEL}={deployment},{REVISION_LABEL}"


def read_list(data: bytes) -> SliceList:
    """Read the answer to a list.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return msgspec.json.decode(data, type=SliceList)


def read_slice(data: bytes | msgspec.Raw) -> Slice:
    """Read the object of an event.

    Raises:
        msgspec.DecodeError: it is no slice.
    """
    return msgspec.json.decode(data, type=Slice)


def discovered(slices: Iterable[Slice]) -> Discovered:
    """Return the engines that take new legs, and the revisions from the oldest to the newest."""
    ordered = sorted(slices, key=lambda one: (one.address_type, one.metadata.name))
    born: dict[str, str] = {}
    for one in ordered:
        revision, made = one.metadata.labels.get(REVISION_LABEL, ""), one.metadata.creation_timestamp or ""
        born[revision] = min(born.get(revision, made), made)
    usable: dict[tuple[Role, str, str], Address] = {}
    leaving: set[tuple[Role, str, str]] = set()
    for address, conditions in (entry for one in ordered for entry in _entries(one)):
        engine = (address.role, address.revision, address.pod or address.url)
        if conditions.usable:
            usable.setdefault(engine, address)
        elif conditions.terminating:
            leaving.add(engine)
    engines = frozenset(address for engine, address in usable.items() if engine not in leaving)
    return Discovered(engines, tuple(sorted(born, key=lambda revision: born[revision])))


def _entries(one: Slice) -> Iterator[tuple[Address, Conditions]]:
    labels = one.metadata.labels
    port = next((port.port for port in one.ports or () if port.name == PORT_NAME), None)
    if labels.get(ROLE_LABEL) not in STAGES or port is None or one.address_type not in _ADDRESS_TYPES:
        return
    role, revision = Role(labels[ROLE_LABEL]), labels.get(REVISION_LABEL, "")
    for endpoint in one.endpoints or ():
        for host in endpoint.addresses[:1]:
            pod = endpoint.target_ref.uid if endpoint.target_ref else ""
            yield Address(role, f"http://{bracketed(host)}:{port}", revision, pod), endpoint.conditions
