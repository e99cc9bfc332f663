"""Memory for embeddings: one range of fixed size, handed out in blocks and used again.

Fresh pages are what costs: on a virtual machine (kernel 6.18) copying 7 MB took 0.2 ms into pages that were
there and 7 ms into new ones. So memory that was used once is kept, and low addresses are handed out first.
"""

from __future__ import annotations

import bisect
import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import torch

from .protocol import Layout

ALIGNMENT: Final = 64
"""Blocks start at multiples of this; no element type of an embedding needs more."""


@dataclass(frozen=True)
class Block:
    """A part of an arena.

    Attributes:
        start: offset of its first byte.
        end: offset behind its last byte.
    """

    start: int
    end: int


def aligned(size: int) -> int:
    """Return how many bytes of an arena a block of `size` bytes takes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Arena:
    """A range of memory. Not for several threads at once, except for reading and writing blocks."""

    def __init__(self, memory: mmap.mmap, path: str = "") -> None:
        """Take a mapping; see `private` and `shared`."""
        self.memory, self.path = memory, path
        self.capacity = len(memory)
        self._holes = [Block(0, self.capacity)]

    @classmethod
    def private(cls, capacity: int) -> Arena:
        """Reserve memory of this process; pages are taken when they are first used."""
        memory = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        return cls(memory)

    @classmethod
    def shared(cls, capacity: int) -> Arena:
        """Reserve memory that other processes of the pod reach by `path` while this process lives.

        It is a `memfd`: no name, no file system whose size limits it, nothing to clean up.
        """
        descriptor = os.memfd_create("mmdisagg-embeddings", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, capacity)
        return cls(mmap.mmap(descriptor, capacity), f"/proc/{os.getpid()}/fd/{descriptor}")

    @property
    def free_bytes(self) -> int:
        """Bytes of all holes together."""
        return sum(hole.end - hole.start for hole in self._holes)

    def allocate(self, size: int) -> Block | None:
        """Take a block of at least `size` bytes from the first hole that is large enough, if there is one."""
        wanted = aligned(size)
        for index, hole in enumerate(self._holes):
            if hole.end - hole.start >= wanted:
                block = Block(hole.start, hole.start + wanted)
                rest = Block(block.end, hole.end)
                self._holes[index : index + 1] = [rest] if rest.end > rest.start else []
                return block
        return None

    def free(self, block: Block) -> None:
        """Give a block back."""
        index = bisect.bisect(self._holes, block.start, key=lambda hole: hole.start)
        start, end = block.start, block.end
        before, after = self._holes[index - 1 : index] if index else [], self._holes[index : index + 1]
        first, last = index, index
        if before and before[0].end == start:
            start, first = before[0].start, index - 1
        if after and after[0].start == end:
            end, last = after[0].end, index + 1
        self._holes[first:last] = [Block(start, end)]

    def bytes_of(self, block: Block, size: int) -> memoryview:
        """Return the first `size` bytes of a block, to read or to write."""
        return memoryview(self.memory)[block.start : block.start + size]

    def tensor_of(self, block: Block, layout: Layout) -> torch.Tensor:
        """Return the embedding in a block, shape [rows, width]; it is the memory itself."""
        return tensor_at(self.memory, block.start, layout)


def tensor_at(memory: mmap.mmap, offset: int, layout: Layout) -> torch.Tensor:
    """Return the embedding that lies at an offset, shape [rows, width]; it is the memory itself."""
    dtype, count = getattr(torch, layout.dtype), layout.rows * layout.width
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(layout.rows, layout.width)


@dataclass(frozen=True)
class MappedEmbedding:
    """Where a worker finds an embedding that arrived.

    Attributes:
        path: of the arena.
        capacity: bytes of the arena.
        offset: of the embedding in it.
        layout: of its elements.
    """

    path: str
    capacity: int
    offset: int
    layout: Layout


class ArenaView:
    """Another process's arena, mapped when it is first needed."""

    def __init__(self) -> None:
        self._mapped: dict[str, mmap.mmap] = {}

    def tensor(self, embedding: MappedEmbedding) -> torch.Tensor:
        """Return an embedding, shape [rows, width], on the CPU, as long as its block is held.

        Raises:
            OSError: the process that has the memory is gone.
        """
        if embedding.path not in self._mapped:
            descriptor = os.open(embedding.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._mapped[embedding.path] = mmap.mmap(descriptor, embedding.capacity)
            finally:
                os.close(descriptor)
        return tensor_at(self._mapped[embedding.path], embedding.offset, embedding.layout)
