"""Encode's embeddings in host memory: a fixed number of bytes, least recently used first out.

What was announced and not yet fetched goes last: its request is on the way. What is being read stays.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from .memory import Arena, Block
from .protocol import Layout


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
    """The store; see the module's docstring. Any thread may call."""

    def __init__(self, capacity: int, count: Callable[[str, float], None]) -> None:
        """Start empty.

        Args:
            capacity: bytes that all embeddings together may have.
            count: called with the name of a counter and an amount.
        """
        self._arena = Arena.private(capacity)
        self._count = count
        self._lock = threading.Lock()
        self._announced: OrderedDict[str, Stored] = OrderedDict()
        self._fetched: OrderedDict[str, Stored] = OrderedDict()

    def publish(self, identity: str, embedding: torch.Tensor) -> bool:
        """Store an embedding, shape [rows, width], from any device, that a request is about to announce.

        Returns:
            False when there is no room, because what is there is being read.
        """
        layout = Layout(str(embedding.dtype).removeprefix("torch."), *embedding.shape)
        with self._lock:
            if self._announce_again(identity):
                return True
            block = self._room(layout.size)
        if block is None:
            self._count("unpublished", 1)
            return False
        self._arena.tensor_of(block, layout).copy_(embedding.detach())
        with self._lock:
            self._announced[identity] = Stored(layout, block)
        self._count("published", 1)
        return True

    @contextmanager
    def reading(self, identity: str) -> Iterator[Stored | None]:
        """Yield an embedding that stays while the context lasts; None when it is not there."""
        with self._lock:
            stored = self._announced.get(identity) or self._fetched.get(identity)
            if stored is not None:
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

    def fetched(self, identity: str) -> None:
        """Note that a consumer has the embedding: it may go before those that none has."""
        with self._lock:
            stored = self._announced.pop(identity, None) or self._fetched.pop(identity, None)
            if stored is not None:
                self._fetched[identity] = stored

    def _announce_again(self, identity: str) -> bool:
        stored = self._announced.pop(identity, None) or self._fetched.pop(identity, None)
        if stored is not None:
            self._announced[identity] = stored
        return stored is not None

    def _room(self, size: int) -> Block | None:
        block = self._arena.allocate(size)
        while block is None and size <= self._arena.capacity and self._evict():
            block = self._arena.allocate(size)
        return block

    def _evict(self) -> bool:
        for shelf in (self._fetched, self._announced):
            for identity, stored in shelf.items():
                if not stored.readers:
                    del shelf[identity]
                    self._arena.free(stored.block)
                    self._count("evictions", 1)
                    return True
        return False
