"""Reading the infos of engines."""

from __future__ import annotations

from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from scripted_engines import model_info

from mmdisagg_workers.contract import INFO_PATH, Role
from mmdisagg_workers.router.endpoints import Endpoint
from mmdisagg_workers.router.infos import InfoReader


@dataclass
class Told:
    """What an engine answers, and who came to `/elsewhere`."""

    answers: list[web.Response] = field(default_factory=list)
    visitors: list[web.Request] = field(default_factory=list)
    url: str = ""


@pytest.fixture
async def engine():
    """An engine that answers as it is told."""
    app, made = web.Application(), Told()

    async def info(_: web.Request) -> web.Response:
        return made.answers.pop(0)

    async def elsewhere(request: web.Request) -> web.Response:
        made.visitors.append(request)
        return web.Response(text=model_info("decode", "PD").to_json())

    app.router.add_get(INFO_PATH, info)
    app.router.add_get("/elsewhere", elsewhere)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def read(engine, *answers):
    engine.answers = list(answers)
    endpoint = Endpoint(Role.DECODE, engine.url)
    async with aiohttp.ClientSession() as session:
        for _ in answers:
            await InfoReader(session).read(endpoint)
    return endpoint


def good():
    return web.Response(text=model_info("decode", "PD").to_json())


async def test_an_info_is_kept(engine):
    endpoint = await read(engine, good())

    assert endpoint.info == model_info("decode", "PD")
    assert endpoint.problem is None


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed_since_the_stage_token_would_go_with_it(engine, status):
    moved = web.Response(status=status, headers={"Location": engine.url + "/elsewhere"})

    endpoint = await read(engine, moved)

    assert (endpoint.info, endpoint.problem) == (None, f"HTTP {status}")
    assert engine.visitors == []


@pytest.mark.parametrize(
    "bad", [web.Response(status=503, text="{}"), web.Response(text="{}"), web.Response(body=b"\xff")]
)
async def test_a_failure_keeps_the_last_info_and_is_noted(engine, bad):
    endpoint = await read(engine, good(), web.Response(status=bad.status, body=bad.body))

    assert endpoint.info == model_info("decode", "PD")
    assert endpoint.problem
