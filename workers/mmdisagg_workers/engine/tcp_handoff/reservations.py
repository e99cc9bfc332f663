"""Room in encode's store for what was reported and not yet fetched: it cannot be evicted.

    scheduler   `Admission` lets a request run only when the store has room for its media beside all that is
                reserved; it waits otherwise, and fails when it waited too long
    worker      `Reservations` says what must not be evicted; a publication is confirmed by the `Journal`
    scheduler   reports only what was confirmed, with the number of its reservation
    consumer    names that number when it fetches, or when it has no need to
    worker      ends the reservation, and says so in the `Journal`

A reservation that nobody ends (the client went away, the consumer died) ends by itself after `SECONDS`. The
scheduler's ends last: it begins when the request is finished, after the worker's. So the reserved bytes that
the scheduler counts are never fewer than the worker's.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from .memory import aligned
from .protocol import NUMBER_BITS, HandoffError

SECONDS: Final = 30.0
"""How long a reported embedding is kept for its consumer, and how long a request waits for room.

A consumer asks for it as soon as its scheduler reaches the request, so what must be covered is the queue at
the consumer, and the encoding of the other media of the same request.
"""


class Reservations:
    """Open reservations. Not for several threads at once."""

    def __init__(self, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._open: OrderedDict[int, tuple[str, float]] = OrderedDict()
        self._numbers: dict[str, set[int]] = {}
        self._unconfirmed: set[int] = set()

    def open(self, number: int, identity: str) -> None:
        """Open a reservation."""
        self._unconfirmed.add(number)
        self.keep(number, identity)

    def keep(self, number: int, identity: str) -> None:
        """Let the time of a reservation begin, or begin anew."""
        self._open[number] = identity, self._clock() + self._seconds
        self._open.move_to_end(number)
        self._numbers.setdefault(identity, set()).add(number)

    def end(self, number: int) -> bool:
        """End a reservation; returns whether there was one."""
        identity, _ = self._open.pop(number, (None, 0.0))
        if identity is None:
            return False
        self._unconfirmed.discard(number)
        self._numbers[identity].remove(number)
        if not self._numbers[identity]:
            del self._numbers[identity]
        return True

    def of(self, identity: str) -> frozenset[int]:
        """Return the open reservations of an embedding."""
        self._expire()
        return frozenset(self._numbers.get(identity, ()))

    def confirm(self, identity: str) -> frozenset[int]:
        """Let the time of an embedding's reservations begin anew; returns those not confirmed before."""
        numbers = self.of(identity)
        for number in numbers:
            self.keep(number, identity)
        fresh = numbers & self._unconfirmed
        self._unconfirmed -= fresh
        return fresh

    def identities(self) -> frozenset[str]:
        """Return all that is reserved."""
        self._expire()
        return frozenset(self._numbers)

    def _expire(self) -> None:
        while self._open:
            number, (_, until) = next(iter(self._open.items()))
            if until > self._clock():
                return
            self.end(number)


class Admission:
    """Which encode requests may run; in the scheduler, first come, first served."""

    def __init__(
        self, capacity: int, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with nothing admitted.

        Args:
            capacity: bytes of the store.
            seconds: how long a reservation lasts, and how long a request waits for room.
            clock: monotonic, in seconds.
        """
        self._capacity, self._seconds, self._clock = capacity, seconds, clock
        self._reservations = Reservations(seconds, clock)
        self._sizes: dict[str, int] = {}
        self._admitted: dict[str, dict[str, int]] = {}
        self._unconfirmed: set[int] = set()
        self._waiting: dict[str, float] = {}

    def admit(self, request_id: str, sizes: Mapping[str, int]) -> dict[int, str] | None:
        """Reserve room for a request's media, all or none.

        Args:
            request_id: of the request.
            sizes: identity of each medium, and the bytes of its embedding.

        Returns:
            New reservations, number and identity, none when it was admitted before: what ended must not be
            opened again by a step that was planned earlier. None when the request must wait.

        Raises:
            HandoffError: there can never be room, or there was none for too long.
        """
        if request_id in self._admitted:
            self._keep(self._admitted[request_id])
            return {}
        if not self._has_room(request_id, sizes):
            self._wait(request_id)
            return None
        self._waiting.pop(request_id, None)
        self._sizes.update((identity, aligned(size)) for identity, size in sizes.items())
        numbers = {identity: secrets.randbits(NUMBER_BITS) or 1 for identity in sizes}
        self._admitted[request_id] = numbers
        self._unconfirmed.update(numbers.values())
        self._keep(numbers)
        return {number: identity for identity, number in numbers.items()}

    def confirm(self, number: int) -> None:
        """Note that the embedding of a reservation is published."""
        self._unconfirmed.discard(number)

    def finish(self, request_id: str) -> dict[str, int]:
        """Forget a request; its reservations are open until they end.

        Returns:
            Identity and number of each; nothing unless all are confirmed.
        """
        self._waiting.pop(request_id, None)
        numbers = self._admitted.pop(request_id, {})
        self._keep(numbers)
        confirmed = self._unconfirmed.isdisjoint(numbers.values())
        self._unconfirmed.difference_update(numbers.values())
        return numbers if confirmed else {}

    def end(self, number: int) -> None:
        """End a reservation."""
        self._reservations.end(number)

    def waits(self, request_id: str) -> bool:
        """Whether a request is waiting for room."""
        return request_id in self._waiting

    def _keep(self, numbers: Mapping[str, int]) -> None:
        for identity, number in numbers.items():
            self._reservations.keep(number, identity)

    def _has_room(self, request_id: str, sizes: Mapping[str, int]) -> bool:
        needed = sum(aligned(size) for size in sizes.values())
        if needed > self._capacity:
            raise HandoffError(f"its media need {needed} bytes; handoff.tcp.capacity is {self._capacity}")
        new = sum(aligned(size) for one, size in sizes.items() if not self._reservations.of(one))
        first = next(iter(self._waiting), request_id)
        return not new or (first == request_id and self._reserved_bytes() + new <= self._capacity)

    def _reserved_bytes(self) -> int:
        reserved = self._reservations.identities()
        self._sizes = {identity: size for identity, size in self._sizes.items() if identity in reserved}
        return sum(self._sizes.values())

    def _wait(self, request_id: str) -> None:
        since = self._waiting.setdefault(request_id, self._clock())
        if self._clock() - since > self._seconds:
            del self._waiting[request_id]
            raise HandoffError(
                f"no room for {self._seconds:g} s: all of handoff.tcp.capacity ({self._capacity} bytes) is "
                "reserved for embeddings that consumers have not fetched"
            )
