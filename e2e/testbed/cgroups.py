"""The control groups below which each node's pods live; one per node and controller.

A kubelet deletes every pod's control group that it does not know, so nodes on
one kernel must not share theirs.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from testbed.deadline import until

NAME = "mmdisagg-testbed"
NEEDED = ("cpu", "cpuset", "memory", "pids")
MOUNTS = Path("/proc/mounts")


def group(node: int) -> str:
    """The name of a node's control group."""
    return f"{NAME}-{node}"


def mounted(mounts: str) -> dict[str, list[Path]]:
    """Where control groups are mounted, by version (``cgroup``, ``cgroup2``).

    Args:
        mounts: The content of ``/proc/mounts``.
    """
    fields = [line.split() for line in mounts.splitlines()]
    return {kind: [Path(f[1]) for f in fields if f[2] == kind] for kind in ("cgroup", "cgroup2")}


def hierarchies(mounts: str) -> list[Path]:
    """The hierarchies that have the controllers: all of version 1 or, without those, the one of version 2."""
    found = mounted(mounts)
    return found["cgroup"] or found["cgroup2"]


def controllers(mounts: str) -> set[str]:
    """The controllers that are mounted."""
    fields = [line.split() for line in mounts.splitlines()]
    first = {option for f in fields if f[2] == "cgroup" for option in f[3].split(",")}
    unified = hierarchies(mounts)[0] / "cgroup.controllers" if hierarchies(mounts) else None
    second = unified.read_text().split() if unified and unified.exists() else []
    return {*first, *second}


def obstacle() -> str | None:
    """Why nodes cannot have control groups here, or None."""
    mounts = MOUNTS.read_text()
    if absent := set(NEEDED) - controllers(mounts):
        return f"no control groups for {', '.join(sorted(absent))} are mounted below /sys/fs/cgroup"
    try:
        for root in hierarchies(mounts):
            probe = root / f"{NAME}-probe"
            probe.mkdir(exist_ok=True)
            probe.rmdir()
    except OSError as error:
        return f"control groups cannot be made: {error}"
    return None


def create(node: int) -> None:
    """Make a node's control groups."""
    for root in hierarchies(MOUNTS.read_text()):
        subtree = root / "cgroup.subtree_control"
        if subtree.exists():  # version 2: a child gets only the controllers that its parent hands on
            subtree.write_text(" ".join(f"+{controller}" for controller in NEEDED))
        (root / group(node)).mkdir(exist_ok=True)


def present() -> list[Path]:
    """All control groups of the test bed that exist; the container runtime makes some in both versions."""
    roots = itertools.chain.from_iterable(mounted(MOUNTS.read_text()).values())
    return [path for root in roots for path in root.glob(f"{NAME}-*")]


def remove() -> None:
    """Remove the control groups of all nodes, with what is still in them.

    Raises:
        NotInTime: One stays busy.
    """

    def gone() -> bool:
        for top in present():
            _kill(top)
            for folder in _deepest_first(top):
                with suppress(OSError):  # busy while its last process ends
                    folder.rmdir()
        return not present()

    until("end of the pods' control groups", gone, seconds=30)


def _deepest_first(top: Path) -> Iterator[Path]:
    for folder, _, _ in os.walk(top, topdown=False):
        yield Path(folder)


def _kill(top: Path) -> None:
    for members in top.rglob("cgroup.procs"):
        with suppress(OSError):
            for pid in members.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
