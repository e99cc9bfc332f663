"""Kernel namespaces held open by a process of ours, and running programs inside them.

Namespaces without a name vanish with their last process. So a node leaves no
mount, interface, route or firewall table behind, however it ended.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from testbed.deadline import until
from testbed.execute import run
from testbed.processes import Processes

INIT = Path(__file__).with_name("init.py")
NETWORK_ONLY = ("unshare", "--net", "--")
# Mounts of the machine still appear inside; those made inside do not appear outside.
WHOLE_NODE = (
    "unshare",
    "--net",
    "--mount",
    "--propagation",
    "slave",
    "--pid",
    "--fork",
    "--mount-proc",
    "--",
)


def hold(processes: Processes, name: str, unshare: Sequence[str]) -> int:
    """Start a process in new namespaces.

    Returns:
        Its pid, as seen from outside.

    Raises:
        NotInTime: It did not come up.
    """
    processes.start(name, [*unshare, sys.executable, "-I", "-S", INIT])
    until(f"namespaces of {name}", lambda: holder(processes, name) is not None, see=str(processes.log(name)))
    pid = holder(processes, name)
    assert pid is not None
    return pid


def holder(processes: Processes, name: str) -> int | None:
    """The pid of the process that holds the namespaces, or None when it does not run."""
    for pid in processes.running().get(name, ()):
        if runs_init(command_line(pid)):
            return pid
    return None


def command_line(pid: int) -> list[str]:
    """A process's command line; empty when it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    return []


def runs_init(words: Sequence[str]) -> bool:
    """Whether a command line is that of a holder, not of the ``unshare`` around it."""
    return str(INIT) in words and words[0] != "unshare"


def enter(pid: int, *kinds: str) -> list[str]:
    """The words that run a command in some of a process's namespaces (``net``, ``mount``, ``pid``)."""
    return ["nsenter", f"--target={pid}", *(f"--{kind}" for kind in kinds), "--"]


def ip_batch(commands: Sequence[str], pid: int | None = None) -> None:
    """Run commands of ``ip`` in one go, in a process's network namespace or in our own.

    Raises:
        ProgramFailed: One of them failed; those after it were not tried.
    """
    where = enter(pid, "net") if pid else []
    run([*where, "ip", "-batch", "-"], stdin="\n".join(commands))


def mount_inside(pid: int, source: Path, target: Path) -> None:
    """Show a folder at another place inside a process's mount namespace."""
    run([*enter(pid, "mount"), "mount", "--bind", source, target])


def write_inside(pid: int, path: str, content: str) -> None:
    """Write a file as a process's network namespace sees it (``/proc/sys/net``)."""
    run([*enter(pid, "net"), "tee", path], stdin=content)
