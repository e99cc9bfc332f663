"""Folders and processes that belong to one run of a command or a test, and go when it ends.

Their instance is called ``KIND-PID-N`` after the process that they belong to, so
what a killed one left behind can be told from what is in use.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.layout import Layout, private_folder, remove_tree
from testbed.processes import MARK, Processes, mark, marked

_counter = itertools.count(1)


def own_instance(kind: str) -> str:
    """A new instance name that says that this process owns it."""
    return f"{kind}-{os.getpid()}-{next(_counter)}"


def owner(instance: str) -> int | None:
    """The pid of the process that owns an instance, or None for one that outlives its command."""
    words = instance.split("-")
    return int(words[1]) if len(words) == 3 and words[1].isdigit() else None


@dataclass(frozen=True)
class Scratch:
    """A folder for the duration of a build.

    Attributes:
        folder: Empty at first; on the file system of what is kept.
    """

    folder: Path

    @property
    def env(self) -> Mapping[str, str]:
        """The environment that marks the build's processes."""
        return {MARK: mark(self.folder, "build")}


@contextmanager
def scratch(layout: Layout) -> Iterator[Scratch]:
    """Make a scratch folder for the block."""
    folder = private_folder(layout.live(own_instance("build")))
    try:
        yield Scratch(folder)
    finally:
        remove_tree(folder)


def remove_orphans(layout: Layout) -> None:
    """End the processes and delete the folders whose owner was killed before it could do so."""
    folders = set(layout.instances.glob("*"))
    folders |= {instance for _, instance, _ in marked() if instance.parent == layout.instances}
    for folder in folders:
        pid = owner(folder.name)
        if pid is not None and not Path(f"/proc/{pid}").exists():
            Processes(folder, layout.log(folder.name)).kill()
            remove_tree(folder)
