"""Embeddings as files in a directory that encode writes and prefill (or decode in E/PD) reads.

One file per media identity, in safetensors form, complete or absent: writes go to a temporary name and are
renamed. A reader keeps a file open from the moment it decided to use it, so whoever cleans the directory
meanwhile cannot take it away.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import safetensors.torch
import torch

from mmdisagg_workers.contract import check_identity

_TENSOR: Final = "embedding"
_MAX_HEADER: Final = 1 << 16


@dataclass(frozen=True)
class OpenEmbedding:
    """A complete embedding file that is held open.

    Attributes:
        descriptor: file descriptor in this process.
        shape: (rows, width), elements.
    """

    descriptor: int
    shape: tuple[int, ...]

    @property
    def source(self) -> str:
        """Path under which other processes of this pod reach the open file, even when it was removed."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def close(self) -> None:
        """Give the file up."""
        os.close(self.descriptor)


class EmbeddingStore:
    """The directory; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, identity: str) -> Path:
        """Return the file of an identity.

        Raises:
            IdentityError: malformed, so it could name a file outside of the directory.
        """
        return self._root / f"{check_identity(identity)}.safetensors"

    def has(self, identity: str) -> bool:
        """Whether the embedding is there."""
        return self.path(identity).exists()

    def publish(self, identity: str, embedding: torch.Tensor) -> None:
        """Write an embedding, shape [rows, width], unless it is there.

        Raises:
            IdentityError: malformed identity.
            OSError: the directory cannot be written.
        """
        final = self.path(identity)
        if final.exists():
            return
        self._root.mkdir(parents=True, exist_ok=True)
        content = safetensors.torch.save({_TENSOR: embedding.detach().cpu().contiguous()})
        _write_whole(final, content)

    def open(self, identity: str) -> OpenEmbedding | None:
        """Open an embedding for use; None when it is absent, unreadable or incomplete.

        Raises:
            IdentityError: malformed identity.
        """
        try:
            descriptor = os.open(self.path(identity), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        shape = _complete_shape(descriptor)
        if shape is None:
            os.close(descriptor)
            return None
        return OpenEmbedding(descriptor, shape)


def load(path: str) -> torch.Tensor:
    """Read an embedding file into memory, shape [rows, width]."""
    with open(path, "rb") as file:
        return safetensors.torch.load(file.read())[_TENSOR]


def _write_whole(final: Path, content: bytes) -> None:
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o660), "wb") as file:
            file.write(content)
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def _complete_shape(descriptor: int) -> tuple[int, ...] | None:
    try:
        size = int.from_bytes(os.pread(descriptor, 8, 0), "little")
        if not 0 < size <= _MAX_HEADER:
            return None
        entry: dict[str, Any] = json.loads(os.pread(descriptor, size, 8))[_TENSOR]
        complete = os.fstat(descriptor).st_size == 8 + size + entry["data_offsets"][1]
        return tuple(entry["shape"]) if complete else None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
