"""A whole deployment per test: scripted engines and the real router on real sockets, in one loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from deadlines import DEADLINES
from fake_api_server import NAMESPACE, FakeApiServer, endpoint, manifest
from scripted_engines import MODEL, TOKEN, ScriptedEngine, World
from waiting import eventually

from mmdisagg_workers.contract import DecodeForm, MediaLimits, Role, Topology
from mmdisagg_workers.router.api_server import Access
from mmdisagg_workers.router.client import EngineClient, open_session
from mmdisagg_workers.router.engines import DiscoveredEngines, Engines
from mmdisagg_workers.router.errors import NotReadyError
from mmdisagg_workers.router.infos import InfoReader
from mmdisagg_workers.router.main import build_front, discovery, engines_of
from mmdisagg_workers.router.request_log import RequestLog
from mmdisagg_workers.router.server import Front
from mmdisagg_workers.router.settings import Settings


@dataclass
class Reply:
    """A response that has been read."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def content(self) -> str:
        return self.json["choices"][0]["message"]["content"]

    @property
    def events(self) -> list[str]:
        text = self.body.decode()
        assert text.endswith("\n\n")
        return [event.removeprefix("data: ") for event in text[:-2].split("\n\n")]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    @property
    def streamed(self) -> str:
        deltas = [c["delta"].get("content") or "" for chunk in self.chunks for c in chunk.get("choices", ())]
        return "".join(deltas)


class Deployment:
    """Scripted engines and a router in front of them."""

    def __init__(self, world: World, engines: dict[str, list[ScriptedEngine]], url: str) -> None:
        self.world = world
        self.engines = engines
        self.url = url
        self.front: Front
        self.log: list[dict[str, Any]] = []
        self.http: aiohttp.ClientSession

    @property
    def encode(self) -> ScriptedEngine:
        return self.engines["encode"][0]

    @property
    def prefill(self) -> ScriptedEngine:
        return self.engines["prefill"][0]

    @property
    def decode(self) -> ScriptedEngine:
        return self.engines["decode"][0]

    async def post(self, body: Any, path: str = "/v1/chat/completions", **options: Any) -> Reply:
        data = json.dumps(body).encode() if isinstance(body, dict | list) else body
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        async with self.http.post(self.url + path, data=data, headers=headers, **options) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str) -> Reply:
        async with self.http.get(self.url + path) as response:
            return Reply(response.status, response.headers, await response.read())

    async def metric(self, name: str, **labels: str) -> float:
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for line in (await self.get("/metrics")).body.decode().splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(label in series for label in wanted):
                return float(value)
        return 0.0


Stops = list[Callable[[], Awaitable[None]]]
Deploy = Callable[..., Awaitable[Deployment]]


async def serve(settings: Settings, deployment: Deployment, stops: Stops) -> Engines:
    """Put a router in front of the deployment's engines."""
    engines = engines_of(settings)
    session = open_session(settings.deadlines, settings.token)
    client = EngineClient(session, settings.deadlines)
    front = build_front(settings, engines, client, InfoReader(session))
    front = replace(front, log=RequestLog(lambda line: deployment.log.append(json.loads(line))))
    runner = front.runner(drain=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    deployment.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    deployment.front = front
    deployment.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
    stops.extend([deployment.http.close, session.close, runner.cleanup])
    return engines


@pytest.fixture
async def stops() -> AsyncIterator[Stops]:
    """What to stop after a test, the latest first."""
    started: Stops = []
    yield started
    for stop in reversed(started):
        await stop()


@pytest.fixture
async def deploy(stops: Stops) -> Deploy:
    """Start a deployment: `await deploy("E/P/D", family="LLaVA", decode=2)`."""

    async def start(
        topology: str = "E/P/D",
        *,
        family: str = "Qwen2.5-VL",
        form: DecodeForm | None = None,
        limits: MediaLimits | None = None,
        deadlines: dict[str, float] | None = None,
        ready: bool = True,
        max_in_flight: int = 512,
        max_bytes_in_flight: int = 2**30,
        tenant_header: str | None = None,
        **counts: int,
    ) -> Deployment:
        world = World()
        roles = [str(role) for role in Topology(topology).roles]
        engines = {
            role: [ScriptedEngine(world, role, topology, family) for _ in range(counts.get(role, 1))]
            for role in roles
        }
        for engine in (e for group in engines.values() for e in group):
            await engine.start()
            stops.append(engine.stop)
        settings = Settings(
            model=MODEL,
            endpoints={Role(role): tuple(e.url for e in group) for role, group in engines.items()},
            decode_form=form,
            token=TOKEN,
            limits=limits or MediaLimits(images=8, videos=1, bytes=100_000),
            deadlines=replace(DEADLINES, **(deadlines or {})),
            max_in_flight=max_in_flight,
            max_bytes_in_flight=max_bytes_in_flight,
            tenant_header=tenant_header,
        )
        deployment = Deployment(world, engines, "")
        await serve(settings, deployment, stops)
        if ready:
            await deployment.front.readiness.refresh()
        return deployment

    return start


class Cluster(Deployment):
    """A router that discovers scripted engines through an API server; each engine has a slice of its own."""

    def __init__(self) -> None:
        super().__init__(World(), {}, "")
        self.api = FakeApiServer()
        self.stops: Stops = []
        self.born: dict[str, str] = {}
        self.found: DiscoveredEngines

    async def discover(self, account: Path) -> None:
        """Start a router that watches the API server with a service account's directory."""
        settings = Settings(MODEL, {}, discover="demo", token=TOKEN, deadlines=DEADLINES)
        engines = await serve(settings, self, self.stops)
        assert isinstance(engines, DiscoveredEngines)
        session = aiohttp.ClientSession()
        found = discovery(settings, Access(self.api.url, account, None), session, engines, self.front)
        tasks = [asyncio.create_task(work) for work in (found.run(), self.front.readiness.watch())]

        async def end() -> None:
            assert not any(task.done() for task in tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await session.close()

        self.stops.append(end)
        self.found = engines

    async def pod(self, role: str, topology: str = "E/P/D", revision: str = "r1") -> ScriptedEngine:
        """Start an engine that no slice names yet."""
        engine = ScriptedEngine(self.world, role, topology)
        engine.info = replace(engine.info, revision=revision)
        await engine.start()
        self.stops.append(engine.stop)
        return engine

    async def publish(self, engine: ScriptedEngine, *, label: str | None = None, **conditions: bool) -> None:
        """Say in a slice how an engine is: ready, if nothing else is said."""
        host, port = engine.url.removeprefix("http://").split(":")
        revision = label or engine.info.revision
        made = self.born.setdefault(revision, f"2026-01-{len(self.born) + 1:02}T00:00:00Z")
        entry = endpoint(host, f"pod-{port}", **conditions)
        await self.api.put(
            manifest(f"{engine.role}-{port}", engine.role, revision, entry, port=int(port), made=made)
        )

    async def leave(self, engine: ScriptedEngine) -> None:
        """Say that an engine's pod terminates."""
        await self.publish(engine, ready=False, serving=True, terminating=True)

    async def revision(
        self, topology: str = "E/P/D", revision: str = "r1", **counts: int
    ) -> dict[str, list[ScriptedEngine]]:
        """Start and publish a ready engine, or several, for each role of a topology."""
        pods: dict[str, list[ScriptedEngine]] = {}
        for role in Topology(topology).roles:
            pods[role] = [await self.pod(role, topology, revision) for _ in range(counts.get(role, 1))]
            for engine in pods[role]:
                await self.publish(engine)
        return pods

    async def served(self, topology: str = "E/P/D", revision: str = "r1") -> None:
        """Wait until the router serves this."""

        def serves() -> bool:
            try:
                serving = self.front.readiness.serving()
            except NotReadyError:
                return False
            return (serving.topology, serving.model.info.revision) == (topology, revision)

        await eventually(serves)

    async def pooled(self, role: str, *engines: ScriptedEngine) -> None:
        """Wait until exactly these engines of a role take legs."""

        def pooled() -> bool:
            try:
                pool = self.front.readiness.serving().pools[Role(role)]
            except NotReadyError:
                return False
            return {endpoint.url for endpoint in pool.endpoints} == {engine.url for engine in engines}

        await eventually(pooled)

    async def unserved(self, *words: str) -> None:
        """Wait until the router serves nothing, for a reason that names these words."""

        def idle() -> bool:
            try:
                self.front.readiness.serving()
            except NotReadyError as reason:
                return all(word in reason.message for word in words)
            return False

        await eventually(idle)


@pytest.fixture
async def cluster(stops: Stops, tmp_path: Path) -> Cluster:
    """A cluster without engines, and a router that watches it."""
    made = Cluster()
    made.stops = stops
    await made.api.start()
    stops.append(made.api.stop)
    (tmp_path / "token").write_text(made.api.token)
    (tmp_path / "namespace").write_text(NAMESPACE)
    await made.discover(tmp_path)
    await eventually(lambda: made.api.watching)
    return made
