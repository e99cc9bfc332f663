"""The processes of a role: who they are, whether they live, and how all of them end.

Every role is started as the leader of a session of its own, and vLLM's children (engine core, workers,
forkserver, resource tracker) stay in it, also after their parent died. So "everything that belongs to a role"
is a question that the kernel answers: the members of that session. Linux only: `/proc` is read directly.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_POLL_S = 0.05
_KILL_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, told from a later one with the same number by its start time (clock ticks after boot)."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    session: int
    started: int


def identify(pid: int) -> ProcessId | None:
    """The living process with this number; None when there is none (a zombie counts as none)."""
    stat = _stat(pid)
    return ProcessId(pid, stat.started) if stat and stat.state not in "ZX" else None


def is_alive(process: ProcessId) -> bool:
    """True while this very process lives."""
    return identify(process.pid) == process


def session_members(leader: ProcessId) -> list[ProcessId]:
    """The living processes of the session that `leader` started, whether or not the leader still lives.

    The kernel gives a number to no new process while a session of that number has members; a living process
    with the leader's number and another start time therefore means that nothing of the session is left.
    """
    current = identify(leader.pid)
    if current is not None and current != leader:
        return []
    stats = ((pid, _stat(pid)) for pid in _pids())
    return [
        ProcessId(pid, stat.started)
        for pid, stat in stats
        if stat and stat.session == leader.pid and stat.state not in "ZX"
    ]


def shared_memory(processes: Iterable[ProcessId]) -> set[Path]:
    """The files under /dev/shm that these processes have mapped."""
    mapped = {inode for process in processes for inode in _mapped_inodes(process.pid)}
    return {path for path in _SHARED_MEMORY.iterdir() if _inode(path) in mapped} if mapped else set()


def end_sessions(
    leaders: Collection[ProcessId], grace_s: float, hurry: Callable[[], bool] = lambda: False
) -> None:
    """End every process of these sessions and remove the shared memory that they leave behind.

    The leaders are asked to stop (SIGTERM); what still lives after `grace_s` seconds, after its leader's end,
    or once `hurry()` is true, is killed.
    """
    segments = shared_memory(_members(leaders))
    for leader in leaders:
        _signal(leader, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while any(map(is_alive, leaders)) and time.monotonic() < deadline and not hurry():
        time.sleep(_POLL_S)
    _kill_members(leaders)
    remove_shared_memory(segments)


def kill_session(leader: ProcessId) -> set[Path]:
    """Kill a session at once; returns the shared memory that it had mapped, which may now be orphaned."""
    segments = shared_memory(session_members(leader))
    _kill_members([leader])
    return segments


def remove_shared_memory(paths: Collection[Path]) -> None:
    """Remove those of the /dev/shm files that no living process has mapped any more."""
    left = {path for path in paths if path.exists()}
    if left:
        still_mapped = {inode for pid in _pids() for inode in _mapped_inodes(pid)}
        for path in left:
            if _inode(path) not in still_mapped:
                path.unlink(missing_ok=True)


def _members(leaders: Iterable[ProcessId]) -> list[ProcessId]:
    return [member for leader in leaders for member in session_members(leader)]


def _kill_members(leaders: Collection[ProcessId]) -> None:
    deadline = time.monotonic() + _KILL_WAIT_S
    while (members := _members(leaders)) and time.monotonic() < deadline:
        for member in members:
            _signal(member, signal.SIGKILL)
        time.sleep(_POLL_S)


def _signal(process: ProcessId, number: signal.Signals) -> None:
    if is_alive(process):
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name is in parentheses and may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return _Stat(state=fields[0], session=int(fields[3]), started=int(fields[19]))


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _mapped_inodes(pid: int) -> set[int]:
    """The inodes of the /dev/shm files that a process has mapped.

    Not their names: a named semaphore is mapped under a temporary name before it gets its own (glibc).
    """
    try:
        lines = (_PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    fields = (line.split(maxsplit=5) for line in lines if f"{_SHARED_MEMORY}/" in line)
    return {int(inode) for _, _, _, _, inode, _ in fields}
