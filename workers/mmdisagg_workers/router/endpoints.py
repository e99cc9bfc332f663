"""The engines of each role, and which of them gets the next leg.

An endpoint that just failed to connect is passed over while another one is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from mmdisagg_workers.contract import ModelInfo, Role

COOLDOWN_SECONDS: Final = 5.0
UNASKED: Final = "not asked yet"


@dataclass(frozen=True)
class Address:
    """Where an engine is, as somebody told the router.

    Attributes:
        role: what it does.
        url: base URL without a trailing slash.
        revision: what it must say its revision is, or "" where nobody knows.
        pod: what tells it from an earlier engine at the same URL, or "".
    """

    role: Role
    url: str
    revision: str = ""
    pod: str = ""


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
    problem: str | None = UNASKED

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
    """The engines of one role; discovery replaces the list, legs in flight go on."""

    endpoints: list[Endpoint] = field(default_factory=list)
    _turn: int = 0

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
