"""What encode's worker process tells its scheduler about reservations, in the order of events."""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final

from .mapped_file import MappedFile, make_mapped_file

RECORDS: Final = 1 << 14
"""The scheduler reads in each step, and no reservation has more than two; a reader that missed some only
holds requests back, or fails them, until the reservations end by themselves."""
_HEAD: Final = struct.Struct("@Q")
_RECORD: Final = struct.Struct("@BQ")
_SIZE: Final = _HEAD.size + RECORDS * _RECORD.size


class Event(IntEnum):
    """What happened to a reservation."""

    PUBLISHED = 1
    ENDED = 2


class Journal:
    """The writing side; any thread may write."""

    def __init__(self, path: Path) -> None:
        """Make the file, whole or not at all."""
        self._map: mmap.mmap = make_mapped_file(path, _SIZE)
        self._lock = threading.Lock()
        self._written = 0

    def write(self, event: Event, number: int) -> None:
        """Append an event of a reservation."""
        with self._lock:
            _RECORD.pack_into(self._map, _offset(self._written), event, number)
            self._written += 1
            _HEAD.pack_into(self._map, 0, self._written)


class JournalReader:
    """The reading side."""

    def __init__(self, path: Path) -> None:
        self._file = MappedFile(path, _SIZE)
        self._read = 0

    def take(self) -> Iterator[tuple[Event, int]]:
        """Yield the events since the last call; nothing before the writer is there."""
        mapped = self._file.mapped()
        if mapped is None:
            return
        (written,) = _HEAD.unpack_from(mapped, 0)
        self._read = max(self._read, written - RECORDS)
        while self._read < written:
            event, number = _RECORD.unpack_from(mapped, _offset(self._read))
            self._read += 1
            yield Event(event), number


def _offset(index: int) -> int:
    return _HEAD.size + index % RECORDS * _RECORD.size
