"""What a consumer has fetched or is fetching: bounded memory, one fetch per embedding, no waiting.

The scheduler asks in each of its steps and gets an answer at once; threads do the fetching, a few for each
peer, so that a slow peer delays only what must come from it. A request's embeddings are taken all together or
not at all: two requests that each held half of the memory would wait for one another for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from .client import Peer, PeerConnection
from .connection import IDLE_SECONDS
from .memory import Arena, Block, MappedEmbedding, aligned
from .protocol import HandoffError, Layout, PeerUnreachableError

logger = logging.getLogger(__name__)

THREADS_PER_PEER: Final = 4
_REMEMBERED: Final = 4096
"""Identities remembered as fetched before, to count fetches that were needed again; reservations that end."""


class State(Enum):
    """How far an arrival is."""

    COMING = auto()
    HERE = auto()
    FAILED = auto()


@dataclass(frozen=True)
class Wanted:
    """An embedding that a request needs.

    Attributes:
        identity: its media identity.
        layout: what the prompt needs.
        peer: where it lies.
        reservation: under which it is kept there; 0 for none.
    """

    identity: str
    layout: Layout
    peer: Peer
    reservation: int = 0


@dataclass(eq=False)
class Arrival:
    """An embedding that was fetched or is being fetched.

    Attributes:
        wanted: what and from where.
        source: where the worker finds it.
        block: its memory.
        state: how far it is.
        users: requests that hold it.
    """

    wanted: Wanted
    block: Block
    source: MappedEmbedding
    state: State = State.COMING
    users: int = 0


@dataclass(frozen=True)
class _Release:
    """A reservation that is to end without a fetch."""

    identity: str
    reservation: int


@dataclass
class _Line:
    """What is still to be fetched from one peer, or told to it."""

    waiting: deque[Arrival | _Release] = field(default_factory=deque)
    threads: int = 0


class Arrivals:
    """The consumer's embeddings; one thread asks, its own threads fetch."""

    def __init__(self, capacity: int, token: str, idle_seconds: float = IDLE_SECONDS) -> None:
        """Start empty.

        Args:
            capacity: bytes that all embeddings together may have.
            token: the stage token.
            idle_seconds: how long a peer may be silent.
        """
        self._arena = Arena.shared(capacity)
        self._token, self._idle_seconds = token, idle_seconds
        self._lock = threading.Lock()
        self._arrivals: OrderedDict[str, Arrival] = OrderedDict()
        self._lines: dict[Peer, _Line] = {}
        self._known: OrderedDict[str, None] = OrderedDict()
        self._ending: OrderedDict[int, None] = OrderedDict()
        self._counts: dict[str, float] = {}

    def take(self, wanted: Sequence[Wanted]) -> list[Arrival] | None:
        """Hold all of these embeddings, fetching those that are not there.

        Returns:
            One arrival for each, to be given back with `give_back`; None when there is no room for all now.

        Raises:
            HandoffError: there can never be room.
        """
        distinct = {one.identity: one for one in wanted}
        size, capacity = sum(aligned(one.layout.size) for one in distinct.values()), self._arena.capacity
        if size > capacity:
            raise HandoffError(f"its media need {size} bytes; handoff.tcp.capacity is {capacity}")
        with self._lock:
            absent = [one for one in distinct.values() if not self._has(one)]
            blocks = self._room(absent, distinct.keys())
            if blocks is None:
                return None
            self._count("hits", len(distinct) - len(absent))
            for one, block in zip(absent, blocks, strict=True):
                self._start(one, block)
            taken = [self._arrivals[one.identity] for one in wanted]
            for arrival in taken:
                arrival.users += 1
            return taken

    def give_back(self, arrival: Arrival) -> None:
        """A request no longer needs an arrival; it stays until its memory is needed."""
        with self._lock:
            arrival.users -= 1

    def release(self, identity: str, peer: Peer, reservation: int) -> None:
        """Tell a peer that a reservation may end, unless a fetch under it does."""
        with self._lock:
            if reservation and reservation not in self._ending:
                self._ends(reservation)
                self._join_line(peer, _Release(identity, reservation))

    def take_counts(self) -> dict[str, float]:
        """Return what happened since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def _count(self, name: str, amount: float = 1) -> None:
        if amount:
            self._counts[name] = self._counts.get(name, 0) + amount

    def _has(self, one: Wanted) -> bool:
        arrival = self._arrivals.get(one.identity)
        if arrival is None:
            return False
        if arrival.wanted.layout != one.layout:
            raise HandoffError(f"{one.identity} is {arrival.wanted.layout} elsewhere, {one.layout} here")
        self._arrivals.move_to_end(one.identity)
        return True

    def _room(self, absent: Sequence[Wanted], keep: Collection[str]) -> list[Block] | None:
        blocks: list[Block] = []
        for one in absent:
            block = self._arena.allocate(one.layout.size)
            while block is None and self._evict(keep):
                block = self._arena.allocate(one.layout.size)
            if block is None:
                for taken in blocks:
                    self._arena.free(taken)
                return None
            blocks.append(block)
        return blocks

    def _evict(self, keep: Collection[str]) -> bool:
        for identity, arrival in self._arrivals.items():
            if arrival.state is State.HERE and not arrival.users and identity not in keep:
                self._drop(arrival)
                self._count("evictions")
                return True
        return False

    def _start(self, one: Wanted, block: Block) -> None:
        self._count("misses")
        self._count("refetches", int(one.identity in self._known))
        source = MappedEmbedding(self._arena.path, self._arena.capacity, block.start, one.layout)
        arrival = Arrival(one, block, source)
        self._arrivals[one.identity] = arrival
        self._ends(one.reservation)
        self._join_line(one.peer, arrival)

    def _ends(self, reservation: int) -> None:
        _remember(self._ending, reservation)

    def _join_line(self, peer: Peer, task: Arrival | _Release) -> None:
        line = self._lines.setdefault(peer, _Line())
        line.waiting.append(task)
        if line.threads < THREADS_PER_PEER:
            line.threads += 1
            threading.Thread(target=self._work_for, args=(peer, line), daemon=True).start()

    def _work_for(self, peer: Peer, line: _Line) -> None:
        connection: PeerConnection | None = None
        while (task := self._next(peer, line)) is not None:
            started = time.monotonic()
            try:
                connection = connection or PeerConnection(peer, self._token, self._idle_seconds)
                self._do(connection, task)
            except (HandoffError, OSError) as error:
                if connection is not None:
                    connection.close()
                    connection = None
                self._failed([task], error)
                if isinstance(error, PeerUnreachableError):
                    self._failed(self._rest(line), error)
            else:
                self._done(task, time.monotonic() - started)
        if connection is not None:
            connection.close()

    def _do(self, connection: PeerConnection, task: Arrival | _Release) -> None:
        if isinstance(task, _Release):
            connection.release(task.identity, task.reservation)
            return
        wanted = task.wanted
        with self._arena.bytes_of(task.block, wanted.layout.size) as target:
            connection.fetch(wanted.identity, wanted.layout, target, wanted.reservation)

    def _next(self, peer: Peer, line: _Line) -> Arrival | _Release | None:
        with self._lock:
            if line.waiting:
                return line.waiting.popleft()
            line.threads -= 1
            if not line.threads:
                del self._lines[peer]
            return None

    def _rest(self, line: _Line) -> list[Arrival | _Release]:
        with self._lock:
            rest = list(line.waiting)
            line.waiting.clear()
            return rest

    def _done(self, task: Arrival | _Release, seconds: float) -> None:
        if isinstance(task, _Release):
            return
        with self._lock:
            task.state = State.HERE
            self._count("fetched_bytes", task.wanted.layout.size)
            self._count("fetch_seconds", seconds)
            _remember(self._known, task.wanted.identity)

    def _failed(self, tasks: Sequence[Arrival | _Release], error: Exception) -> None:
        for task in tasks:
            if isinstance(task, _Release):
                logger.info("reservation of %s not ended: %s", task.identity, error)
                continue
            wanted = task.wanted
            logger.warning(
                "embedding %s of %s:%d: %s", wanted.identity, wanted.peer.host, wanted.peer.port, error
            )
            with self._lock:
                task.state = State.FAILED
                self._drop(task)
                self._count("fetch_failures")

    def _drop(self, arrival: Arrival) -> None:
        del self._arrivals[arrival.wanted.identity]
        self._arena.free(arrival.block)


def _remember(known: OrderedDict[Any, None], key: Any) -> None:
    known[key] = None
    while len(known) > _REMEMBERED:
        known.popitem(last=False)
