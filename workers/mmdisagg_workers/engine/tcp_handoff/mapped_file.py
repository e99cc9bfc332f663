"""Files by which encode's worker process tells its engine-core process something.

vLLM 0.32.0's CPU model runner gives an encoder-only worker no way to report to its scheduler: it drops the
connector's output. So the worker writes to a mapped file, which has no name as soon as the scheduler has it.
"""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path


def meeting_place(engine_id: str) -> Path:
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
