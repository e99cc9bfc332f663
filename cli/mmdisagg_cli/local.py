"""A deployment on this machine: every role a process, from the same resource and plan as in a cluster.

    deployment = load_deployment(yaml.safe_load(path.read_text()))
    with LocalDeployment(deployment, base=path.parent, reference=True) as local:
        local.start()                         # waits for engine slots, then starts everything at once
        local.wait_ready(timeout_s=300)       # RoleDied, NotReady
        post(local.url + "/v1/chat/completions", ...)
        local.role("decode").kill()           # a fault; not reported as a death
        local.role("decode").restart()        # same command, same ports
        local.role("decode").wait_ready(120)
        local.role("aggregated").url          # the one-engine yardstick
    # here nothing is left: no process, no port, no shared memory, no file

`serve=False, reference=True` starts the yardstick alone, beside a deployment that already runs.
"""

import hashlib
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from mmdisagg_cli.child_environment import child_environment
from mmdisagg_cli.engine_slots import EngineSlots
from mmdisagg_cli.errors import CommandError
from mmdisagg_cli.leases import Lease
from mmdisagg_cli.ports import LOOPBACK, PortPool, ReservedPort
from mmdisagg_cli.processes import ProcessId, end_sessions, identify
from mmdisagg_cli.role_process import NotReady, RoleCommand, RoleDied, RoleProcess
from mmdisagg_cli.state import DeploymentState, RoleState, StateStore
from mmdisagg_operator.api import ModelSource, MultimodalDisaggDeployment, Role
from mmdisagg_operator.plan import Endpoint, Launch, LocalSite, aggregated, launches, local_model

ROUTER = str(Role.ROUTER)
"""The role that takes the clients' requests."""

AGGREGATED = "aggregated"
"""The role of the yardstick: one engine that does everything, with the same engine arguments."""

_PREFERRED_ROUTER_PORT = 8000
_POLL_S = 0.2

Tick = Callable[[Sequence[RoleProcess]], None]
"""Called again and again while roles start; may raise to give up."""


class MissingProgram(CommandError):
    """A program of this distribution is not installed."""


class MissingModel(CommandError):
    """The directory that the resource names as its model is not there."""


class LocalDeployment:
    """The processes of one deployment; leaving the context ends them all.

    `base` is the directory that relative paths of the resource start from (the YAML's). `serve` starts the
    roles and the router, `reference` the aggregated yardstick. `hurry` is asked while stopping: true means
    kill at once.
    """

    def __init__(
        self,
        deployment: MultimodalDisaggDeployment,
        base: Path,
        *,
        serve: bool = True,
        reference: bool = False,
        port: int | None = None,
        store: StateStore | None = None,
        slots: EngineSlots | None = None,
        grace_s: float = 15.0,
        hurry: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = deployment.metadata.name if serve else f"{deployment.metadata.name}+{AGGREGATED}"
        self.deployment = deployment
        self.base = base.resolve()
        self.store = store or StateStore()
        self.stage_token = secrets.token_hex(32)
        self.roles: list[RoleProcess] = []
        self._serve, self._reference, self._port = serve, reference, port
        self._slots = slots or EngineSlots()
        self._grace_s, self._hurry = grace_s, hurry
        self._ports: list[ReservedPort] = []
        self._leases: list[Lease] = []
        self._phase: Literal["starting", "ready"] = "starting"
        self._state: DeploymentState | None = None

    def __enter__(self) -> "LocalDeployment":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where clients send their requests: the router, or the yardstick when it is alone."""
        return self.role(self._front).url

    @property
    def _front(self) -> str:
        return ROUTER if self._serve else AGGREGATED

    def role(self, name: str) -> RoleProcess:
        """The role of this name; with several replicas decode-0, decode-1.

        Raises:
            KeyError: when the deployment has no such role.
        """
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(
            f"{self.name} has no role {name}; it has {', '.join(role.name for role in self.roles)}"
        )

    def start(
        self, waiting: Callable[[str], None] = lambda message: None, slot_timeout_s: float | None = None
    ) -> None:
        """Start all processes at once, after waiting for the engine slots that they need.

        Raises:
            AlreadyRunning: when a living deployment has this name.
            NoEngineSlot: when the slots did not come free in time, or are more than the machine has.
            NoFreePort: when the wanted port is in use.
            MissingProgram: when a role's program is not installed.
            MissingModel: when the resource names a directory that is not there.
        """
        scratch = Path(tempfile.mkdtemp(prefix="mmdisagg-"))
        try:
            commands = self._commands(scratch)
            self._claim(scratch, commands)
            engines = sum(command.role != ROUTER for command in commands)
            self._leases = self._slots.acquire(engines, self.name, slot_timeout_s, waiting)
            self._start_roles(commands)
        except BaseException:
            self.stop()
            shutil.rmtree(scratch, ignore_errors=True)
            raise

    def wait_ready(self, timeout_s: float, tick: Tick = lambda roles: None) -> None:
        """Wait until every role can serve.

        Raises:
            RoleDied: as soon as a role's process has ended.
            NotReady: when `timeout_s` seconds passed.
        """
        deadline = time.monotonic() + timeout_s
        while waiting_for := [role for role in self.roles if not _is_ready(role)]:
            tick(self.roles)
            self.check()
            if time.monotonic() >= deadline:
                raise NotReady(waiting_for, timeout_s)
            time.sleep(_POLL_S)
        tick(self.roles)
        self._phase = "ready"
        self._write_state()

    def check(self) -> None:
        """Raise `RoleDied` when a role's process has ended and nobody had asked for it."""
        for role in self.roles:
            role.remember_shared_memory()
            if role.died:
                raise RoleDied(role)

    def save_logs(self) -> Path:
        """Copy the logs to a place that outlives the deployment; the next failure of the same name replaces
        them.
        """
        target = self.store.root / ".failed" / self.name
        shutil.rmtree(target, ignore_errors=True)
        return Path(shutil.copytree(self.store.directory(self.name) / "logs", target))

    def stop(self) -> None:
        """End every process and remove every file of the deployment; safe to call twice."""
        end_sessions([role.process for role in self.roles if role.process], self._grace_s, self._hurry)
        for role in self.roles:
            role.reap()
        for lease in self._leases:
            lease.release()
        for port in self._ports:
            port.release()
        if self._state is not None:
            shutil.rmtree(self._state.scratch, ignore_errors=True)
            self.store.remove(self.name)
            self._state = None

    def _commands(self, scratch: Path) -> list[RoleCommand]:
        site = self._site(scratch)
        commands = []
        if self._serve:
            commands += _serving_commands(launches(self.deployment, site), site, scratch)
        if self._reference:
            place = Endpoint(LOOPBACK, next(self._take_ports()))
            commands.append(
                _command(AGGREGATED, AGGREGATED, aggregated(self.deployment, site, place), place, scratch)
            )
        return commands

    def _site(self, scratch: Path) -> LocalSite:
        embeddings = scratch / "embeddings"
        embeddings.mkdir()
        site = LocalSite.allocate(
            self.deployment,
            model=self._model(),
            embedding_store=str(embeddings),
            stage_token=self.stage_token,
            ports=self._take_ports(),
        )
        return replace(site, router=Endpoint(LOOPBACK, self._take_router_port()))

    def _model(self) -> str:
        model = local_model(self.deployment, self.base)
        if self.deployment.spec.model.source is ModelSource.PATH and not Path(model).is_dir():
            raise MissingModel(f"spec.model.path: there is no directory {model}")
        return model

    def _take_ports(self) -> Iterator[int]:
        pool = PortPool()
        while True:
            self._ports.append(pool.take())
            yield self._ports[-1].number

    def _take_router_port(self) -> int:
        pool = PortPool()
        taken = pool.take_exactly(self._port) if self._port else pool.take_preferred(_PREFERRED_ROUTER_PORT)
        self._ports.append(taken)
        return taken.number

    def _claim(self, scratch: Path, commands: Sequence[RoleCommand]) -> None:
        supervisor = identify(os.getpid()) or ProcessId(os.getpid(), 0)
        state = DeploymentState(
            name=self.name,
            spec_digest=spec_digest(self.deployment, self.base),
            supervisor=supervisor,
            phase="starting",
            url=next(command.url for command in commands if command.role == self._front),
            scratch=scratch,
        )
        self.store.claim(state)
        self._state = state
        self.store.write_private(self.name, "stage-token", self.stage_token)

    def _start_roles(self, commands: Sequence[RoleCommand]) -> None:
        logs = self.store.directory(self.name) / "logs"
        slots = iter(self._leases)
        for command in commands:
            slot = None if command.role == ROUTER else next(slots)
            role = RoleProcess(command, logs / f"{command.name}.log", slot, self._write_state)
            self.roles.append(role)
            role.start()

    def _write_state(self) -> None:
        if self._state is not None:
            roles = tuple(
                RoleState(name=role.name, process=role.process, port=role.port, url=role.url, log=role.log)
                for role in self.roles
            )
            self._state = self._state.model_copy(update={"phase": self._phase, "roles": roles})
            self.store.write(self._state)


def spec_digest(deployment: MultimodalDisaggDeployment, base: Path) -> str:
    """Tells whether two deployments were started from the same spec in the same place."""
    text = f"{base.resolve()}\n{deployment.model_dump_json()}"
    return hashlib.sha256(text.encode()).hexdigest()


def program(name: str) -> str:
    """The path of one of this distribution's programs: the one installed beside the running interpreter.

    Raises:
        MissingProgram: when it is not there.
    """
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise MissingProgram(f"{name} is not installed beside {sys.executable}; run `make setup`")
    return str(path)


def _is_ready(role: RoleProcess) -> bool:
    role.refresh()
    return role.ready


def _serving_commands(
    planned: Mapping[Role, Sequence[Launch]], site: LocalSite, scratch: Path
) -> list[RoleCommand]:
    commands = []
    for role, replicas in planned.items():
        for number, launch in enumerate(replicas):
            place = site.router if role == ROUTER else site.engines[role][number].http
            name = role if len(replicas) == 1 else f"{role}-{number}"
            commands.append(_command(name, role, launch, place, scratch))
    return commands


def _command(name: str, role: str, launch: Launch, place: Endpoint, scratch: Path) -> RoleCommand:
    return RoleCommand(
        name=name,
        role=role,
        argv=[program(launch.program), *launch.args],
        environment=child_environment(os.environ, launch.env, scratch),
        port=place.port,
        url=place.url,
        ready_path="/ready" if role == ROUTER else "/health",
    )
