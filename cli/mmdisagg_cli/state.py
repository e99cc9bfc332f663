"""What `up` writes down about a running deployment, so that `down`, `status` and `verify` find it.

One directory per deployment under $XDG_STATE_HOME/mmdisagg, readable by its owner only:

    <name>/state.json     processes with their start times, ports, URL
    <name>/stage-token    the secret that the roles share
    <name>/logs/          one log per role

A state that cannot be read may belong to processes that run: nothing is removed, and the command fails.
A state whose supervisor (the `mmdisagg` process that started it) no longer lives is stale; the next command
that needs the name ends what is left of its processes and removes it.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from mmdisagg_cli.errors import CommandError
from mmdisagg_cli.processes import ProcessId, end_sessions, is_alive, session_members

_GRACE_S = 5.0


class AlreadyRunning(CommandError):
    """A deployment of this name runs already."""


class UnusableState(CommandError):
    """A file or directory of the states cannot be read or written; what it describes may still run."""

    exit_code = 2


class StillRunning(CommandError):
    """Processes of a deployment live on, although they were killed."""


class RoleState(BaseModel):
    """One role's process, as written to state.json."""

    model_config = ConfigDict(frozen=True)

    name: str
    process: ProcessId | None
    port: int
    url: str
    log: Path


class DeploymentState(BaseModel):
    """A running deployment, as written to state.json; `spec_digest` tells which spec it was started from."""

    model_config = ConfigDict(frozen=True)

    name: str
    spec_digest: str
    supervisor: ProcessId
    phase: Literal["starting", "ready"]
    url: str
    scratch: Path
    roles: tuple[RoleState, ...] = ()

    @property
    def alive(self) -> bool:
        """True while the command that started the deployment still watches over it."""
        return is_alive(self.supervisor)


class StateStore:
    """The states of all local deployments of this user, under `root`."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()

    def directory(self, name: str) -> Path:
        """Where the deployment of this name keeps its files.

        Raises:
            ValueError: for a name that would lead out of `root`.
        """
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is no deployment's name")
        return self.root / name

    def claim(self, state: DeploymentState) -> None:
        """Write the first state of a deployment, after cleaning up a stale one of the same name.

        Raises:
            AlreadyRunning: when a living deployment has the name.
            UnusableState: when the directory cannot be used, or an earlier state cannot be read.
        """
        with self._locked(), _usable(self.root):
            current = self.read(state.name)
            if current is not None and current.alive:
                raise AlreadyRunning(_refusal(current))
            self._clean(state.name, current)
            (self.directory(state.name) / "logs").mkdir(parents=True, mode=0o700)
            self.directory(state.name).chmod(0o700)
            self.write(state)

    def write(self, state: DeploymentState) -> None:
        """Replace the deployment's state.json in one step."""
        self.write_private(state.name, "state.json", state.model_dump_json(indent=1))

    def write_private(self, name: str, file: str, text: str) -> None:
        """Write a file into the deployment's directory that only the owner can read."""
        target = self.directory(name) / file
        temporary = target.with_name(file + ".new")
        with _usable(target):
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
                stream.write(text)
            temporary.replace(target)

    def read(self, name: str) -> DeploymentState | None:
        """The deployment's state, stale or not; None when there is none.

        Raises:
            UnusableState: when there is one that cannot be read.
        """
        path = self.directory(name) / "state.json"
        try:
            with _usable(path):
                return DeploymentState.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise UnusableState(
                f"{path} cannot be read ({error.errors()[0]['msg']}); end what runs of {name}, then remove "
                f"{path.parent}"
            ) from error

    def running(self, name: str) -> DeploymentState | None:
        """The deployment's state while its supervisor lives."""
        state = self.read(name)
        return state if state is not None and state.alive else None

    def names(self) -> list[str]:
        """The names of all deployments that have a state, stale and unreadable ones too.

        Raises:
            UnusableState: when the directory cannot be listed.
        """
        try:
            with _usable(self.root):
                found = [path for path in self.root.iterdir() if not path.name.startswith(".")]
                return sorted(path.name for path in found if (path / "state.json").exists())
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        """Forget a deployment whose processes have ended."""
        shutil.rmtree(self.directory(name), ignore_errors=True)

    def clean_stale(self, name: str) -> bool:
        """End what a killed supervisor left behind and forget it; False when there was nothing stale.

        Raises:
            UnusableState: when the state cannot be read.
            StillRunning: when processes live on.
        """
        with self._locked():
            state = self.read(name)
            if (state is not None and state.alive) or not self.directory(name).exists():
                return False
            self._clean(name, state)
            return True

    def _clean(self, name: str, state: DeploymentState | None) -> None:
        if state is not None:
            leaders = [role.process for role in state.roles if role.process]
            end_sessions(leaders, _GRACE_S)
            left = [str(member.pid) for leader in leaders for member in session_members(leader)]
            if left:
                raise StillRunning(f"{name}: processes {', '.join(left)} could not be ended")
            shutil.rmtree(state.scratch, ignore_errors=True)
        self.remove(name)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with _usable(self.root):
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = open(self.root / ".lock", "w")  # noqa: SIM115  (closed below)
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Tell any failure but absence as the state's."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnusableState(f"{error.filename or path}: {error.strerror or error}") from error


def default_root() -> Path:
    """$XDG_STATE_HOME/mmdisagg, by default ~/.local/state/mmdisagg."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "mmdisagg"


def _refusal(state: DeploymentState) -> str:
    return (
        f"deployment {state.name} already runs at {state.url} (pid {state.supervisor.pid}); "
        f"stop it with `mmdisagg down {state.name}`"
    )
