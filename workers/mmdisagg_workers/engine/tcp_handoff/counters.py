"""Numbers that one process counts and another reads.

vLLM 0.32.0's CPU model runner gives an encoder-only worker no way to report to its scheduler: it drops the
connector's output. So the worker counts in a mapped file, which has no name as soon as the scheduler has it.
"""

from __future__ import annotations

import mmap
import struct
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_NUMBER: Final = struct.Struct("@d")


def counter_file(engine_id: str) -> Path:
    """Return where the processes of one engine meet; `engine_id` is the one of vLLM's configuration."""
    return Path(tempfile.gettempdir()) / f"mmdisagg-embeddings-{engine_id}"


def make_mapped_file(path: Path, size: int) -> mmap.mmap:
    """Make a file of zeros, whole or not at all, and map it to write."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(bytes(size))
    with temporary.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), size)
    temporary.rename(path)
    return mapped


class MappedFile:
    """Such a file in the process that reads it; its name goes as soon as it is mapped."""

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size = path, size
        self._map: mmap.mmap | None = None
        # On encode the worker is there before its scheduler: nothing stays behind, however both end.
        self.mapped()

    def mapped(self) -> mmap.mmap | None:
        """Return the mapping; None before the writer is there."""
        if self._map is None:
            try:
                with self._path.open("rb") as file:
                    self._map = mmap.mmap(file.fileno(), self._size, access=mmap.ACCESS_READ)
                self._path.unlink()
            except FileNotFoundError:
                return None
        return self._map


class Counters:
    """The counting side; threads may count at once."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        """Make the file, whole or not at all."""
        self._map = make_mapped_file(path, len(names) * _NUMBER.size)
        self._offsets = {name: index * _NUMBER.size for index, name in enumerate(names)}
        self._lock = threading.Lock()

    def add(self, name: str, amount: float = 1) -> None:
        """Count."""
        offset = self._offsets[name]
        with self._lock:
            _NUMBER.pack_into(self._map, offset, _NUMBER.unpack_from(self._map, offset)[0] + amount)


class CounterReader:
    """The reading side."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._last = dict.fromkeys(names, 0.0)
        self._file = MappedFile(path, len(names) * _NUMBER.size)

    def take(self) -> dict[str, float]:
        """Return by how much each number grew since the last call; nothing before the writer is there."""
        counted = self._file.mapped()
        if counted is None:
            return {}
        now = {name: value for name, (value,) in zip(self._last, _NUMBER.iter_unpack(counted), strict=True)}
        grown = {name: value - self._last[name] for name, value in now.items() if value != self._last[name]}
        self._last = now
        return grown
