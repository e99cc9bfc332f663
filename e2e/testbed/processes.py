"""Starting, finding and stopping the long-running programs.

Each program carries a mark in its environment, which its children inherit. The
kernel's process table is therefore the only record: there are no pid files to
be stale, and what a killed ``up`` left behind is found all the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from testbed.deadline import until
from testbed.errors import ProgramFailed
from testbed.execute import SEARCH_PATH, tail

EXEC_SECONDS = 0.02
MARK = "MMDISAGG_TESTBED_PROCESS"


def mark(instance: Path, name: str) -> str:
    """The value of the mark: which instance, which of its programs."""
    return f"{instance}#{name}"


def read_mark(environ: bytes) -> tuple[Path, str] | None:
    """Instance and name from the content of ``/proc/PID/environ``, or None without a mark."""
    for entry in environ.split(b"\0"):
        variable, _, value = entry.partition(b"=")
        if variable == MARK.encode():
            instance, _, name = value.decode(errors="replace").rpartition("#")
            return Path(instance), name
    return None


def _is_marked(pid: int) -> bool:
    with suppress(OSError):
        return read_mark(Path(f"/proc/{pid}/environ").read_bytes()) is not None
    return False


def marked() -> Iterator[tuple[int, Path, str]]:
    """Pid, instance and name of every marked process that this user may see."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if found := read_mark((entry / "environ").read_bytes()):
                    yield int(entry.name), *found


@dataclass
class Processes:
    """The programs of one instance.

    Attributes:
        instance: The instance's live folder, which identifies it.
        logs: Where each program's output is written, as ``NAME.log``.
    """

    instance: Path
    logs: Path
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list, repr=False)

    def start(self, name: str, argv: Sequence[str | Path]) -> None:
        """Start a program in a session of its own, so that it outlives this process."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with open(self.log(name), "wb") as log:
            child = subprocess.Popen(
                [str(word) for word in argv],
                cwd=self.instance,
                env={"PATH": SEARCH_PATH, "HOME": str(self.instance), MARK: mark(self.instance, name)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._children.append(child)
        until(f"mark of {name}", lambda: child.poll() is not None or _is_marked(child.pid), seconds=10)

    def log(self, name: str) -> Path:
        """The file with a program's output."""
        return self.logs / f"{name}.log"

    def running(self) -> dict[str, list[int]]:
        """The pids of each program, by its name."""
        found: dict[str, list[int]] = {}
        for pid, instance, name in marked():
            if instance == self.instance:
                found.setdefault(name, []).append(pid)
        return found

    def _settled(self) -> dict[str, list[int]]:
        """What runs, looked up twice: a process shows no environment while it becomes another program."""
        first = self.running()
        time.sleep(EXEC_SECONDS)
        return first | self.running()

    def require(self, *names: str) -> None:
        """Check that programs run.

        Raises:
            ProgramFailed: One has ended; the message has the last lines of its log.
        """
        running = self._settled()
        for name in names:
            if name not in running:
                log = self.log(name)
                last = tail(log.read_text(errors="replace")) if log.exists() else "(no log)"
                raise ProgramFailed(f"{name} has ended; the last lines of {log}:\n{last}")

    def kill(self, *names: str) -> None:
        """End programs and all they started, at once; without names, the whole instance.

        Nothing is asked to end gently: their data is thrown away, and those that
        keep data across runs (the container runtime) are built to survive this.
        """

        def gone() -> bool:
            running = self._settled()
            left = [pid for name, pids in running.items() if not names or name in names for pid in pids]
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        until("end of the killed programs", gone, seconds=30)
        for child in self._children:
            child.poll()
