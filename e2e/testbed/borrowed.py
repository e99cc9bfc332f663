"""Folders made on the machine only to have something to mount on inside a node; taken away again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def borrow(record: Path, folder: Path) -> None:
    """Make a folder if it is missing, after noting in a file that it is ours to remove."""
    if not folder.exists():
        with open(record, "a") as notes:
            notes.write(f"{folder}\n")
        folder.mkdir()


def give_back(record: Path) -> None:
    """Remove the noted folders; one that somebody has put something into stays."""
    notes = record.read_text().splitlines() if record.exists() else []
    for folder in reversed(notes):
        with suppress(OSError):
            Path(folder).rmdir()
