"""The Lease that lets one operator work at a time.

The client library's leader election ends on the first connection reset and never gives the Lease back, so
this is a small one of our own. Whether a Lease has run out is judged by how long it has not changed on this
machine's own monotonic clock: clocks of machines need not agree.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from .cluster import Cluster
from .errors import ApiError, UnreachableError
from .kinds import LEASE
from .plan.objects import Manifest

DURATION_SECONDS: Final = 15.0
"""How long others wait for a holder that is silent."""
DEADLINE_SECONDS: Final = 10.0
"""How long the holder itself works on without having renewed."""
RETRY_SECONDS: Final = 2.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Term:
    """A Lease as it was read, and when it last changed.

    Attributes:
        holder: who has it; empty for nobody.
        version: its resourceVersion.
        since: monotonic time at which this version was first seen, in seconds.
        duration: seconds that its holder asked others to wait.
    """

    holder: str
    version: str
    since: float
    duration: float

    def free_for(self, identity: str, now: float) -> bool:
        """Whether `identity` may take it."""
        return self.holder in ("", identity) or now - self.since > self.duration


@dataclass
class Lease:
    """One Lease and one who wants it.

    Attributes:
        cluster: where it is.
        namespace: its namespace.
        name: its name.
        identity: who wants it.
        clock: monotonic time in seconds.
        now: the time that is written for people.
        retry: seconds between two tries.
    """

    cluster: Cluster
    namespace: str
    name: str
    identity: str
    clock: Callable[[], float]
    now: Callable[[], datetime]
    retry: float = RETRY_SECONDS
    _term: Term | None = field(default=None)

    async def acquire(self) -> None:
        """Wait until the Lease is held."""
        _logger.info("waiting for Lease %s/%s as %s", self.namespace, self.name, self.identity)
        while not await self._take_or_renew():  # noqa: ASYNC110 - the Lease is not in this process
            await asyncio.sleep(self.retry)
        _logger.info("holding Lease %s/%s", self.namespace, self.name)

    async def keep(self) -> None:
        """Renew until it is lost: somebody else has it, or it could not be renewed in time."""
        renewed = self.clock()
        while self.clock() - renewed < DEADLINE_SECONDS:
            await asyncio.sleep(self.retry)
            started = self.clock()
            try:
                async with asyncio.timeout(max(0.0, renewed + DEADLINE_SECONDS - started)):
                    if await self._take_or_renew():
                        renewed = started
                    elif self._term is not None and self._term.holder != self.identity:
                        break
            except TimeoutError:
                break
        _logger.error("lost Lease %s/%s", self.namespace, self.name)

    async def release(self) -> None:
        """Give the Lease back, so that another need not wait; a failure only costs the other that wait."""
        try:
            lease = await self.cluster.get(LEASE, self.namespace, self.name)
            if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self.cluster.replace({**lease, "spec": spec})
        except (ApiError, UnreachableError) as error:
            _logger.warning("could not give the Lease back: %s", error)

    async def _take_or_renew(self) -> bool:
        try:
            lease = await self.cluster.get(LEASE, self.namespace, self.name)
            if lease is None:
                await self.cluster.create(self._manifest(None))
                return True
            self._term = self._read(lease)
            if not self._term.free_for(self.identity, self.clock()):
                return False
            await self.cluster.replace(self._manifest(lease))
            return True
        except (ApiError, UnreachableError) as error:
            _logger.warning("Lease %s/%s: %s", self.namespace, self.name, error)
            return False

    def _read(self, lease: Manifest) -> Term:
        version, spec = lease["metadata"]["resourceVersion"], lease.get("spec") or {}
        known = self._term is not None and self._term.version == version
        since = self._term.since if self._term is not None and known else self.clock()
        duration = float(spec.get("leaseDurationSeconds") or DURATION_SECONDS)
        return Term(spec.get("holderIdentity") or "", version, since, duration)

    def _manifest(self, lease: Manifest | None) -> Manifest:
        stamp = self.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = (lease or {}).get("spec") or {}
        mine = before.get("holderIdentity") == self.identity
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(DURATION_SECONDS),
            "acquireTime": before.get("acquireTime", stamp) if mine else stamp,
            "renewTime": stamp,
            "leaseTransitions": before.get("leaseTransitions", 0) + (0 if mine or lease is None else 1),
        }
        metadata = {"name": self.name, "namespace": self.namespace}
        base = lease or {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata}
        return {**base, "spec": spec}
