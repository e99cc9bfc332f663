"""Encode's embeddings in host memory: a fixed number of bytes, least recently used first out.

What is reserved for a consumer, or is being read, stays.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from .memory import Arena, Block, aligned
from .protocol import Layout
from .reservations import Reservations


@dataclass(eq=False)
class Stored:
    """An embedding in the store.

    Attributes:
        layout: of its elements.
        block: where it lies.
        readers: transfers that are reading it now.
    """

    layout: Layout
    block: Block
    readers: int = 0


class HostStore:
    """The store; see the module's docstring. One thread publishes, any may read."""

    def __init__(
        self,
        capacity: int,
        count: Callable[[str, float], None],
        reservations: Reservations | None = None,
    ) -> None:
        """Start empty.

        Args:
            capacity: bytes that all embeddings together may have.
            count: called with the name of a counter and an amount.
            reservations: what may not be evicted; the store's own from now on.
        """
        self._arena = Arena.private(capacity)
        self._count = count
        self._lock = threading.Lock()
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._reservations = Reservations() if reservations is None else reservations

    def reserve(self, numbers: Mapping[int, str]) -> None:
        """Keep embeddings, there or still to come; a number and an identity for each."""
        with self._lock:
            for number, identity in numbers.items():
                self._reservations.open(number, identity)

    def end(self, number: int) -> bool:
        """End a reservation; returns whether there was one."""
        with self._lock:
            return self._reservations.end(number)

    def publish(self, identity: str, embedding: torch.Tensor) -> frozenset[int] | None:
        """Store an embedding, shape [rows, width], from any device; the time of its reservations begins.

        Returns:
            The numbers of its reservations that were not returned before; None when there is no room, because
            what is there is reserved or being read.
        """
        layout = Layout(str(embedding.dtype).removeprefix("torch."), *embedding.shape)
        with self._lock:
            if identity in self._stored:
                return self._used(identity)
            block = self._room(layout.size)
        if block is None:
            self._count("unpublished", 1)
            return None
        self._arena.tensor_of(block, layout).copy_(embedding.detach())
        self._count("published", 1)
        with self._lock:
            self._stored[identity] = Stored(layout, block)
            return self._used(identity)

    @contextmanager
    def reading(self, identity: str) -> Iterator[Stored | None]:
        """Yield an embedding that stays while the context lasts; None when it is not there."""
        with self._lock:
            stored = self._stored.get(identity)
            if stored is not None:
                self._stored.move_to_end(identity)
                stored.readers += 1
        try:
            yield stored
        finally:
            if stored is not None:
                with self._lock:
                    stored.readers -= 1

    def content(self, stored: Stored) -> memoryview:
        """Return the bytes of an embedding that is being read."""
        return self._arena.bytes_of(stored.block, stored.layout.size)

    def _used(self, identity: str) -> frozenset[int]:
        self._stored.move_to_end(identity)
        return self._reservations.confirm(identity)

    def _room(self, size: int) -> Block | None:
        if size > self._arena.capacity:
            return None
        block = self._arena.allocate(size)
        while block is None and self._evict():
            block = self._arena.allocate(size)
        if block is None and self._arena.free_bytes >= aligned(size):
            self._close_ranks()
            block = self._arena.allocate(size)
        return block

    def _evict(self) -> bool:
        for identity, stored in self._stored.items():
            if not stored.readers and not self._reservations.of(identity):
                del self._stored[identity]
                self._arena.free(stored.block)
                self._count("evictions", 1)
                return True
        return False

    def _close_ranks(self) -> None:
        # What was admitted must fit, however what is reserved lies.
        for stored in sorted(self._stored.values(), key=lambda one: one.block.start):
            if not stored.readers:
                before = stored.block
                self._arena.free(before)
                stored.block = self._arena.allocate(stored.layout.size) or before
                self._arena.memory.move(stored.block.start, before.start, stored.layout.size)
