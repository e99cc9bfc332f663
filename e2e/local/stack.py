"""A running deployment as the tests use it: one router per decode form, and a separate aggregated engine."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import requests
from chat import Server
from stages import Stages

from mmdisagg_cli.local import AGGREGATED, ROUTER, LocalDeployment
from mmdisagg_cli.ports import LOOPBACK, PortPool
from mmdisagg_cli.processes import ProcessId, session_members
from mmdisagg_cli.role_process import NotReady, RoleDied, RoleProcess
from mmdisagg_operator.api import load_deployment
from mmdisagg_workers.contract import DecodeForm, ModelInfo

ROOT = Path(__file__).resolve().parents[2]
ALLOWED_HOST = "127.0.0.1"
"""The one private host that the test deployments may fetch pictures from."""
START_SECONDS = 420
KV_LEASE_SECONDS = 30
"""How long prefill keeps blocks that nobody fetches (vLLM's `kv_lease_duration`)."""
CPU_ENGINE = {
    "device": "Cpu",
    "maxModelLen": 1024,
    "extraArgs": ["--dtype=float32", "--enforce-eager", "--block-size=32"],
}
TOPOLOGIES: Mapping[str, tuple[str, ...]] = {
    "E/P/D": ("encode", "prefill", "decode"),
    "E/PD": ("encode", "decode"),
    "EP/D": ("prefill", "decode"),
    "PD": ("decode",),
}


def eventually(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.25)


def resource(model: Path, topology: str, **spec: Any) -> dict[str, Any]:
    """The resource of a test deployment."""
    roles = {role: {"replicas": 1} for role in (*TOPOLOGIES[topology], "router")}
    return {
        "apiVersion": "mmdisagg.io/v1alpha1",
        "kind": "MultimodalDisaggDeployment",
        "metadata": {"name": f"test-{model.name}-{topology.lower().replace('/', '-')}"},
        "spec": {
            "model": {"source": "Path", "path": str(model), "servedName": "m"},
            "engine": CPU_ENGINE,
            **roles,
            **spec,
        },
    }


class Stack:
    """The processes of one deployment, its routers and its yardstick."""

    def __init__(self, model: Path, topology: str, *, reference: bool = True, **spec: Any) -> None:
        """Describe it, with or without the yardstick; `start` runs it."""
        self.topology = topology
        self.local = LocalDeployment(
            load_deployment(resource(model, topology, **spec)), model, reference=reference
        )
        self._pool = PortPool()
        self._routers: dict[tuple[str, ...], RoleProcess] = {}

    def start(self) -> None:
        """Start all processes and wait until they are ready.

        Raises:
            RoleDied: a role ended; its last log lines are shown.
            NotReady: a role took longer than `START_SECONDS`.
        """
        try:
            self.local.start(lambda message: print(message, file=sys.stderr))
            self.local.wait_ready(START_SECONDS)
        except (RoleDied, NotReady):
            for role in self.local.roles:
                print(f"--- {role.name}\n{role.log_tail(30)}", file=sys.stderr)
            raise

    def stop(self) -> None:
        """End all processes."""
        for router in self._routers.values():
            router.kill()
            router.reap()
        self.local.stop()

    @property
    def token(self) -> str:
        """The stage token of the engines."""
        return self.local.stage_token

    @property
    def reference(self) -> Server:
        """The separate aggregated engine."""
        return Server(self.local.role(AGGREGATED).url, "m")

    def engine(self, role: str) -> Server:
        """One engine, behind its stage token."""
        return Server(self.local.role(role).url, "m", self.token)

    def router(self, form: DecodeForm | None = None, **options: str) -> Server:
        """The deployment's router, or another one in front of the same engines with other options."""
        if form is not None:
            options["decode-contract"] = str(form)
        if not options:
            return Server(self.local.role(ROUTER).url, "m")
        key = tuple(sorted(f"--{name}={value}" for name, value in options.items()))
        if key not in self._routers:
            self._routers[key] = self._start_router(key)
        return Server(self._routers[key].url, "m")

    def info(self, role: str) -> ModelInfo:
        """What an engine says about itself."""
        response = requests.get(self.local.role(role).url + "/mmdisagg/v1/info", timeout=10)
        return ModelInfo.from_json(response.content)

    @property
    def stages(self) -> Stages:
        """The engines of the deployment, to be driven by hand."""
        here = TOPOLOGIES[self.topology]
        roles = (self.engine(r) if r in here else None for r in ("encode", "prefill", "decode"))
        return Stages(*roles, self.info("decode"))

    @property
    def embedding_store(self) -> Path:
        """The directory of the shared volume."""
        argv = self.local.role("encode").command.argv
        config = json.loads(argv[argv.index("--ec-transfer-config") + 1])
        return Path(config["ec_connector_extra_config"]["shared_storage_path"])

    def processes(self, role: str) -> list[ProcessId]:
        """The processes of a role: API server, engine core, workers."""
        process = self.local.role(role).process
        assert process is not None
        return session_members(process)

    def _start_router(self, options: tuple[str, ...]) -> RoleProcess:
        command = self.local.role(ROUTER).command
        port = self._pool.take().number
        command = dataclasses.replace(
            command,
            name=f"router-{port}",
            argv=[*command.argv, *options, f"--port={port}"],
            port=port,
            url=f"http://{LOOPBACK}:{port}",
        )
        process = RoleProcess(command, self.local.role(ROUTER).log.with_name(f"{command.name}.log"))
        process.start()
        process.wait_ready(60)
        return process


class Stacks:
    """At most one stack at a time; asking for another one ends the first."""

    def __init__(self) -> None:
        """Start with none."""
        self._current: tuple[str, Stack] | None = None

    def get(self, model: Path, topology: str, **spec: Any) -> Stack:
        """Return the running stack of a model and a topology, starting it if need be."""
        key = f"{model} {topology} {spec}"
        if self._current is None or self._current[0] != key:
            self.stop()
            stack = Stack(model, topology, **spec)
            try:
                stack.start()
            except BaseException:
                stack.stop()
                raise
            self._current = (key, stack)
        return self._current[1]

    def stop(self) -> None:
        """End the current stack, if any."""
        if self._current is not None:
            self._current[1].stop()
            self._current = None


def stacks() -> Iterator[Stacks]:
    """Yield the stacks of a test session and end what runs at its end."""
    running = Stacks()
    try:
        yield running
    finally:
        running.stop()
