"""Which engines may serve one request together.

A leg is built from what its engines told about themselves, so a request stays with one set whose engines
agree on every fact: model, revision, topology, shapes, limits. An engine of another set would be given wrong
positions and answer all the same.

Engines are known in one of two ways. They are given at start: then they make one set, and one that differs
is an error. Or they are discovered while deployments change: then those that agree make a set of their own,
and the newest set with an engine for every role of its topology serves.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mmdisagg_workers.contract import STAGES, DecodeForm, ModelInfo, Role, Topology, topology_of

from .endpoints import Address, Endpoint, Pool
from .errors import NotReadyError
from .infos import agreed_info, model_of, roles_told
from .legs import Model


@dataclass(frozen=True, eq=False)
class EngineSet:
    """Engines that agree.

    Attributes:
        topology: which roles there are.
        model: what they agree on.
        pools: the engines by role, as they come and go.
    """

    topology: Topology
    model: Model
    pools: Mapping[Role, Pool]


class Engines(Protocol):
    """All engines that the router knows."""

    @property
    def endpoints(self) -> Collection[Endpoint]:
        """All of them, to be asked."""

    def serving(self) -> EngineSet:
        """Return the set that new requests go to.

        Raises:
            NotReadyError: there is none; the message says why.
        """


class GivenEngines:
    """Engines that were named at start; the roles that are named make the topology."""

    def __init__(self, urls: Mapping[Role, Sequence[str]], form: DecodeForm | None) -> None:
        """Know the engines.

        Raises:
            ValueError: the roles make no topology.
        """
        self._form = form
        self._topology = topology_of([role for role, named in urls.items() if named])
        self._pools = {role: Pool(_endpoints(role, urls[role])) for role in self._topology.roles}
        self._set: EngineSet | None = None

    @property
    def endpoints(self) -> Collection[Endpoint]:
        """All of them, to be asked."""
        return [endpoint for pool in self._pools.values() for endpoint in pool.endpoints]

    def serving(self) -> EngineSet:
        """Return the set of all engines.

        Raises:
            NotReadyError: an info is missing, or two differ; the message says which.
        """
        info = agreed_info(self.endpoints)
        if info.topology != self._topology:
            told = f"the router was given {self._topology}"
            raise NotReadyError(f"The engines run topology {info.topology}, {told}.")
        model = model_of(info, self._form)
        if self._set is None or self._set.model != model:
            self._set = EngineSet(self._topology, model, self._pools)
        return self._set


@dataclass(frozen=True)
class Discovered:
    """What discovery found.

    Attributes:
        engines: the engines that take new legs.
        revisions: all revisions, the newest last.
    """

    engines: frozenset[Address] = frozenset()
    revisions: tuple[str, ...] = ()


class DiscoveredEngines:
    """Engines that come and go.

    Attributes:
        problem: why nothing has been discovered yet.
    """

    def __init__(self, form: DecodeForm | None) -> None:
        self._form = form
        self._found: Discovered | None = None
        self._known: dict[Address, Endpoint] = {}
        self._groups: dict[str, _Group] = {}
        self._numbers = itertools.count()
        self.problem = "the API server has not answered yet"

    @property
    def endpoints(self) -> Collection[Endpoint]:
        """All of them, to be asked."""
        return list(self._known.values())

    def replace(self, found: Discovered) -> None:
        """Take over what discovery found; engines that stay keep their state, and so do legs in flight."""
        self._found = found
        self._known = {
            address: self._known.get(address) or Endpoint(address.role, address.url)
            for address in sorted(found.engines, key=lambda one: one.url)
        }

    def serving(self) -> EngineSet:
        """Return the newest complete set.

        Raises:
            NotReadyError: no set is complete; the message says what each lacks.
        """
        if self._found is None:
            raise NotReadyError(f"The engines are not known yet: {self.problem}.")
        self._regroup()
        complete = [group for group in self._groups.values() if group.lack is None]
        if not complete:
            raise NotReadyError(" ".join(self._reasons()) or "There is no ready engine.")
        ages = {revision: age for age, revision in enumerate(self._found.revisions)}
        return max(complete, key=lambda group: (ages.get(group.info.revision, -1), group.number)).engines

    def _regroup(self) -> None:
        members: dict[str, list[Endpoint]] = {}
        for address, endpoint in self._known.items():
            if endpoint.info is not None and _fits(address, endpoint.info):
                facts = replace(endpoint.info, role="").to_json()
                members.setdefault(facts, []).append(endpoint)
                if facts not in self._groups:
                    self._groups[facts] = _Group(endpoint.info, self._form, next(self._numbers))
        for facts, group in self._groups.items():
            group.take(members.get(facts, ()))
        self._groups = {facts: group for facts, group in self._groups.items() if facts in members}

    def _reasons(self) -> Iterator[str]:
        groups = self._groups.values()
        yield from (group.lack for group in groups if group.lack)
        for one, other in itertools.combinations((group.info for group in groups), 2):
            if (one.revision, one.topology) == (other.revision, other.topology):
                yield f"The engines disagree on {one.disagreement(other)}."
        for address, endpoint in self._known.items():
            if endpoint.info is None:
                yield f"The {address.role} engine at {address.url} is not ready: {endpoint.problem}."
            elif not _fits(address, endpoint.info):
                told = f"{endpoint.info.role} of revision {endpoint.info.revision}"
                yield f"The {address.role} engine at {address.url} says that it is {told}."


class _Group:
    """Discovered engines that agree on every fact; complete or not, usable or not."""

    def __init__(self, info: ModelInfo, form: DecodeForm | None, number: int) -> None:
        self.info = info
        self.number = number
        self._pools = {role: Pool() for role in STAGES}
        self._form = form
        self._engines: EngineSet | None = None

    @property
    def engines(self) -> EngineSet:
        """The set; the same one each time.

        Raises:
            NotReadyError: the router cannot serve such engines.
        """
        if self._engines is None:
            model = model_of(self.info, self._form)
            self._engines = EngineSet(_topology(self.info), model, self._pools)
        return self._engines

    @property
    def lack(self) -> str | None:
        """Why the set cannot serve now."""
        try:
            missing = [role for role in self.engines.topology.roles if not self._pools[role].endpoints]
        except NotReadyError as reason:
            return reason.message
        if not missing:
            return None
        return (
            f"Revision {self.info.revision} ({self.info.topology}) has no ready {', '.join(missing)} engine."
        )

    def take(self, endpoints: Collection[Endpoint]) -> None:
        """Make these its engines, also for requests that are on their way."""
        for role, pool in self._pools.items():
            pool.endpoints = [endpoint for endpoint in endpoints if endpoint.role is role]


def _endpoints(role: Role, urls: Iterable[str]) -> list[Endpoint]:
    return [Endpoint(role, url) for url in dict.fromkeys(url.rstrip("/") for url in urls)]


def _fits(address: Address, info: ModelInfo) -> bool:
    return info.role in roles_told(address.role) and info.revision == address.revision


def _topology(info: ModelInfo) -> Topology:
    try:
        return Topology(info.topology)
    except ValueError:
        raise NotReadyError(f"The engines run topology {info.topology}, which is not known.") from None
