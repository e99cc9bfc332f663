"""Numbers that encode's worker process counts and its engine-core process reads."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .mapped_file import MappedFile, make_mapped_file

_NUMBER: Final = struct.Struct("@d")


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
