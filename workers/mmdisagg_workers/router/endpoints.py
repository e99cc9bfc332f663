"""The engines of each role, and which of them gets the next leg.

A pool is told its base URLs and may be told others later (`replace`): that is the seam where discovery
attaches. An endpoint that just failed to connect is passed over while another one is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from mmdisagg_workers.contract import ModelInfo

from .topology import Role

COOLDOWN_SECONDS: Final = 5.0


@dataclass(eq=False)
class Endpoint:
    """One engine.

    Attributes:
        role: what it does.
        url: base URL without a trailing slash.
        in_flight: legs it is working on.
        avoid_until: time of the event loop's clock until which others are preferred, in seconds.
        info: what it told about itself, or None until it was read.
        problem: why its info could not be read at the last try, or None.
    """

    role: Role
    url: str
    in_flight: int = 0
    avoid_until: float = 0.0
    info: ModelInfo | None = None
    problem: str | None = "not asked yet"

    def failed(self, now: float) -> None:
        """Note that a connection failed."""
        self.avoid_until = now + COOLDOWN_SECONDS

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count a leg as in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1


@dataclass
class Pool:
    """The engines of one role."""

    role: Role
    endpoints: list[Endpoint] = field(default_factory=list)
    _turn: int = 0

    def replace(self, urls: Iterable[str]) -> None:
        """Make `urls` the engines of this role; those that stay keep their state."""
        kept = {endpoint.url: endpoint for endpoint in self.endpoints}
        clean = dict.fromkeys(url.rstrip("/") for url in urls)
        self.endpoints = [kept.get(url) or Endpoint(self.role, url) for url in clean]

    def choose(self, now: float, tried: Collection[Endpoint] = ()) -> Endpoint | None:
        """Return the engine for the next leg: untried, not failing, fewest legs in flight, in turn.

        An engine that was tried is chosen again only when there is no other. None without engines.
        """
        if not self.endpoints:
            return None
        self._turn += 1
        count = len(self.endpoints)
        rotated = [self.endpoints[(self._turn + offset) % count] for offset in range(count)]
        return min(rotated, key=lambda e: (e in tried, e.avoid_until > now, e.in_flight))
