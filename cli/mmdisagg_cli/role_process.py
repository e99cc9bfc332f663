"""One role as a local process: start it, watch how far it has come, break it on purpose, end it."""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from mmdisagg_cli.errors import CommandError
from mmdisagg_cli.leases import Lease
from mmdisagg_cli.ports import LOOPBACK
from mmdisagg_cli.processes import (
    ProcessId,
    identify,
    kill_session,
    remove_shared_memory,
    session_members,
    shared_memory,
)
from mmdisagg_cli.progress import Progress, Step, advance

_DIE_WITH_PARENT = "MMDISAGG_DIE_WITH_PARENT"
_TAIL_BYTES = 64 * 1024
_PROBE_TIMEOUT_S = 2.0
_REAP_TIMEOUT_S = 5.0
_LOOK_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class RoleCommand:
    """What a role's process is started with.

    `role` is encode, prefill, decode, router or aggregated; `name` tells replicas apart (decode-0, decode-1);
    `ready_path` answers 200 once the role can serve.
    """

    name: str
    role: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    port: int
    url: str
    ready_path: str = "/health"


class RoleProcess:
    """A role's process and its log. The process leads a session of its own, so Ctrl-C reaches only the
    command.

    `slot` is the engine slot that the process inherits; `started` is called after every start.
    """

    def __init__(
        self,
        command: RoleCommand,
        log: Path,
        slot: Lease | None = None,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        self.command = command
        self.log = log
        self._started = started
        self.progress = Progress()
        self._slot = slot
        self._popen: subprocess.Popen[bytes] | None = None
        self._id: ProcessId | None = None
        self._started_at = 0.0
        self._ready_after: float | None = None
        self._read_to = 0
        self._down_on_purpose = True
        self._segments: set[Path] = set()
        self._look_at = 0.0

    @property
    def name(self) -> str:
        """The role's name, with the replica's number where there are several."""
        return self.command.name

    @property
    def url(self) -> str:
        """Where the role listens."""
        return self.command.url

    @property
    def port(self) -> int:
        """The port on which the role listens."""
        return self.command.port

    @property
    def process(self) -> ProcessId | None:
        """The process that was started last; None before the first start."""
        return self._id

    @property
    def exit_code(self) -> int | None:
        """The exit code of a process that ended (negative: the signal that ended it); None while it lives."""
        return self._popen.poll() if self._popen else None

    @property
    def alive(self) -> bool:
        """True while the process lives."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def died(self) -> bool:
        """True when the process ended and nobody had asked for it."""
        return not self._down_on_purpose and not self.alive

    @property
    def ready(self) -> bool:
        """True once the role has answered its readiness probe."""
        return self.progress.step is Step.READY

    @property
    def elapsed_s(self) -> float:
        """The seconds that the start took, or has taken so far."""
        return self._ready_after if self._ready_after is not None else time.monotonic() - self._started_at

    @property
    def age_s(self) -> float:
        """The seconds since the last start."""
        return time.monotonic() - self._started_at

    def start(self) -> None:
        """Start the process; its output goes to the end of the log."""
        with self.log.open("ab") as output:
            self._read_to = output.tell()
            self._popen = subprocess.Popen(  # noqa: S603
                self.command.argv,
                env={**self.command.environment, **_tie_to_this_process()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # The engine holds its slot itself: see engine_slots.
                pass_fds=[self._slot.fileno()] if self._slot else [],
            )
        self._id = identify(self._popen.pid) or ProcessId(self._popen.pid, 0)
        self._started_at, self._ready_after = time.monotonic(), None
        self.progress = Progress()
        self._down_on_purpose = False
        self._started()

    def refresh(self) -> Progress:
        """Read the new lines of the log and, until the role is ready, ask it whether it is."""
        if not self.ready:
            for line in self._new_lines():
                self.progress = advance(self.progress, line)
            if self.alive and self._answers():
                self.progress = Progress(Step.READY)
                self._ready_after = time.monotonic() - self._started_at
                self._look_at = 0.0
        self.remember_shared_memory()
        return self.progress

    def remember_shared_memory(self) -> None:
        """Note what the role has mapped, now and then; once it has died, nothing tells whose it was."""
        if self.alive and time.monotonic() >= self._look_at:
            mapped = shared_memory(self.members())
            self._segments = {path for path in self._segments if path.exists()} | mapped
            self._look_at = time.monotonic() + _LOOK_EVERY_S

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until this one role is ready, as after `restart`.

        Raises:
            RoleDied: when the process ended.
            NotReady: when `timeout_s` seconds passed.
        """
        deadline = time.monotonic() + timeout_s
        while self.refresh().step is not Step.READY:
            if self.died:
                raise RoleDied(self)
            if time.monotonic() >= deadline:
                raise NotReady([self], timeout_s)
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the role and all its children at once, as a fault would; this is not reported as a death."""
        self._down_on_purpose = True
        if self._popen is not None and self._id is not None:
            self._segments |= kill_session(self._id)
            self._popen.wait()

    def restart(self) -> None:
        """Kill what still lives of the role and start it again with the same command on the same ports."""
        self.kill()
        self.start()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the log."""
        try:
            with self.log.open("rb") as stream:
                stream.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                text = stream.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def members(self) -> list[ProcessId]:
        """The living processes of the role: its own and its children's."""
        return session_members(self._id) if self._id else []

    def reap(self) -> None:
        """Collect the ended process and the shared memory of earlier kills; part of the deployment's stop."""
        self._down_on_purpose = True
        if self._popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(_REAP_TIMEOUT_S)
        remove_shared_memory(self._segments)

    def _new_lines(self) -> list[str]:
        with self.log.open("rb") as stream:
            stream.seek(self._read_to)
            chunk = stream.read()
        # A line that is still being written is read again, whole, the next time; progress bars end lines with
        # \r.
        complete = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        self._read_to += complete
        return chunk[:complete].decode(errors="replace").splitlines()

    def _answers(self) -> bool:
        connection = HTTPConnection(LOOPBACK, self.port, timeout=_PROBE_TIMEOUT_S)
        try:
            connection.request("GET", self.command.ready_path)
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


class RoleDied(CommandError):
    """A role's process ended by itself; `role` has its exit code and log."""

    def __init__(self, role: RoleProcess) -> None:
        self.role = role
        super().__init__(f"{role.name} died {_cause(role.exit_code)}, {role.age_s:.0f} s after its start")


class NotReady(CommandError):
    """Some roles were not ready in time."""

    def __init__(self, roles: Sequence[RoleProcess], timeout_s: float) -> None:
        self.roles = tuple(roles)
        states = ", ".join(f"{role.name}: {role.progress.words}" for role in roles)
        super().__init__(f"not ready after {timeout_s:g} s ({states})")


def _tie_to_this_process() -> dict[str, str]:
    """Let a worker end when this process is killed and can end nothing any more.

    The kernel means the thread that starts the worker, so only the main thread, which ends last, asks for it.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    return {_DIE_WITH_PARENT: str(os.getpid())} if in_main_thread else {}


def _cause(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"of signal {-exit_code}"
    return f"with exit code {exit_code}"
