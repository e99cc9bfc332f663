"""A whole deployment per test: scripted engines and the real router on real sockets, in one loop."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from deadlines import DEADLINES
from scripted_engines import MODEL, TOKEN, ScriptedEngine, World

from mmdisagg_workers.contract import DecodeForm
from mmdisagg_workers.router.client import EngineClient, open_session
from mmdisagg_workers.router.infos import InfoReader
from mmdisagg_workers.router.main import build_front
from mmdisagg_workers.router.request_log import RequestLog
from mmdisagg_workers.router.server import Front
from mmdisagg_workers.router.settings import MediaLimits, Settings
from mmdisagg_workers.router.topology import Role, Topology


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
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
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


Deploy = Callable[..., Awaitable[Deployment]]


@pytest.fixture
async def deploy() -> AsyncIterator[Deploy]:
    """Start a deployment: `await deploy("E/P/D", family="LLaVA", decode=2)`."""
    started: list[Callable[[], Awaitable[None]]] = []

    async def start(
        topology: str = "E/P/D",
        *,
        family: str = "Qwen2.5-VL",
        form: DecodeForm | None = None,
        limits: MediaLimits | None = None,
        deadlines: dict[str, float] | None = None,
        ready: bool = True,
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
            started.append(engine.stop)
        settings = Settings(
            model=MODEL,
            endpoints={Role(role): tuple(e.url for e in group) for role, group in engines.items()},
            decode_form=form,
            token=TOKEN,
            limits=limits or MediaLimits(images=8, videos=1, bytes=100_000),
            deadlines=replace(DEADLINES, **(deadlines or {})),
        )
        deployment = Deployment(world, engines, "")
        session = open_session(settings.deadlines, settings.token)
        client = EngineClient(session, settings.deadlines)
        front = build_front(settings, client, InfoReader(session))
        front = replace(front, log=RequestLog(lambda line: deployment.log.append(json.loads(line))))
        runner = front.runner(drain=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        deployment.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        deployment.front = front
        deployment.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=8))
        if ready:
            await front.readiness.refresh()
        started.extend([deployment.http.close, session.close, runner.cleanup])
        return deployment

    yield start
    for stop in reversed(started):
        await stop()
