"""The process: its command line, how it starts, and how it stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys

import aiohttp
import pytest
from scripted_engines import TOKEN, ScriptedEngine, World, chat
from waiting import eventually

from mmdisagg_workers.contract import Topology
from mmdisagg_workers.router.api_server import Access
from mmdisagg_workers.router.discovery import Discovery
from mmdisagg_workers.router.engines import DiscoveredEngines
from mmdisagg_workers.router.main import EXIT_BAD_SETTINGS, engines_of, main, parser, serve, settings_from
from mmdisagg_workers.router.settings import MAX_IN_FLIGHT, SettingsError

MEDIA = json.dumps({"allowedHosts": ["x"], "limits": {"images": 2, "videos": 0, "bytes": 99, "pixels": 5}})


def settings(*arguments: str, **environment: str):
    return settings_from(parser().parse_args(["--served-model", "m", *arguments]), environment)


@pytest.mark.parametrize(
    ("arguments", "topology"),
    [
        (("--encode", "http://e", "--prefill", "http://p", "--decode", "http://d"), Topology.E_P_D),
        (("--encode", "http://e", "--decode", "http://d"), Topology.E_PD),
        (("--prefill", "http://p", "--decode", "http://d"), Topology.EP_D),
        (("--decode", "http://d"), Topology.PD),
    ],
)
def test_the_roles_that_are_given_make_the_topology(arguments, topology):
    given = engines_of(settings(*arguments)).endpoints
    assert [endpoint.role for endpoint in given] == list(topology.roles)


@pytest.mark.parametrize("arguments", [(), ("--encode", "http://e"), ("--prefill", "http://p")])
def test_without_decode_there_is_no_topology(arguments):
    with pytest.raises(SettingsError, match="decode is needed"):
        settings(*arguments)


def test_engines_are_given_or_discovered_never_both():
    assert isinstance(engines_of(settings("--discover", "demo")), DiscoveredEngines)
    with pytest.raises(SettingsError, match="not both"):
        settings("--discover", "demo", "--decode", "http://d")


def test_outside_of_a_pod_nothing_can_be_discovered(monkeypatch, capsys):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(SystemExit) as caught:
        main(["--served-model", "m", "--discover", "demo"])

    assert caught.value.code == EXIT_BAD_SETTINGS
    assert "KUBERNETES_SERVICE_HOST" in capsys.readouterr().err


def test_urls_of_a_role_may_stand_together_or_apart():
    made = settings("--decode", "http://a", "http://b", "--decode", "http://c")

    assert made.endpoints["decode"] == ("http://a", "http://b", "http://c")


def test_environment_and_timeouts():
    made = settings(
        "--decode", "http://d", "--request-timeout", "60", MMDISAGG_MEDIA=MEDIA, MMDISAGG_STAGE_TOKEN=TOKEN
    )

    assert (made.limits.images, made.limits.videos, made.limits.bytes) == (2, 0, 99)
    assert made.token == TOKEN
    assert made.deadlines.request == 60


def test_the_limit_of_requests_in_flight():
    assert settings("--decode", "http://d").max_in_flight == MAX_IN_FLIGHT
    assert settings("--decode", "http://d", "--max-in-flight", "7").max_in_flight == 7


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_a_limit_that_admits_nobody_stops_the_start(number, capsys):
    with pytest.raises(SystemExit):
        settings("--decode", "http://d", "--max-in-flight", number)
    assert "--max-in-flight" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--decode", "notaurl"],
        ["--decode", "ftp://127.0.0.1"],
        ["--decode", "http://:80"],
        ["--port", "99999"],
        ["--port", "-1"],
        ["--tenant-header", "bad:header"],
        ["--tenant-header", "bad header"],
    ],
)
def test_a_word_that_is_none_of_its_kind_stops_the_start(words, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["--served-model", "m", "--decode", "http://d", *words])
    assert words[1] in capsys.readouterr().err


@pytest.mark.parametrize("media", ["{", "[]", '{"limits": {"images": -1}}', '{"limits": {"bytes": "20Mi"}}'])
def test_malformed_media_settings_stop_the_start(media, monkeypatch, capsys):
    monkeypatch.setenv("MMDISAGG_MEDIA", media)

    with pytest.raises(SystemExit) as caught:
        main(["--served-model", "m", "--decode", "http://d"])

    assert caught.value.code == EXIT_BAD_SETTINGS
    assert "MMDISAGG_MEDIA" in capsys.readouterr().err


def test_help_explains_topologies_and_environment(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])

    assert caught.value.code == 0
    text = capsys.readouterr().out
    for word in ("E/PD", "MMDISAGG_STAGE_TOKEN", "MMDISAGG_MEDIA", "pixels", "--discover", "SIGTERM"):
        assert word in text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_sigterm_finishes_what_is_in_flight():
    engine = ScriptedEngine(World(), "decode", "PD")
    await engine.start()
    port = free_port()
    arguments = ["--served-model", "shapes", "--port", str(port), "--decode", engine.url]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mmdisagg_workers.router.main",
        *arguments,
        env={**os.environ, "MMDISAGG_STAGE_TOKEN": TOKEN},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            await until_ready(http)
            engine.hold = asyncio.Event()
            request = asyncio.create_task(post(http))
            await eventually(lambda: engine.active == 1)

            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
            with pytest.raises(aiohttp.ClientConnectionError):
                async with aiohttp.ClientSession() as other:
                    await other.get(f"http://127.0.0.1:{port}/health")
            engine.hold.set()

            assert (await request)["choices"][0]["message"]["content"] == "I see text"
            out, err = await asyncio.wait_for(process.communicate(), 5)
        assert process.returncode == 0, err
        assert err == b""
        line = json.loads(out.splitlines()[-1])
        assert line["outcome"] == "ok"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await engine.stop()


async def until_ready(http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                async with http.get("/ready") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.05)


async def post(http: aiohttp.ClientSession):
    async with http.post("/v1/chat/completions", json=chat("hi")) as response:
        return await response.json()


async def test_a_discovering_router_serves_and_stops(cluster, tmp_path):
    await cluster.revision("PD")
    port = free_port()
    access = Access(cluster.api.url, tmp_path, None)
    running = asyncio.create_task(serve(cluster.front.settings, access, "127.0.0.1", port, 1.0))
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        await until_ready(http)
        assert (await post(http))["choices"][0]["message"]["content"] == "I see text"

    os.kill(os.getpid(), signal.SIGTERM)

    await asyncio.wait_for(running, 5)


async def test_a_router_whose_discovery_fails_unforeseen_ends(cluster, tmp_path, monkeypatch):
    async def broken(_: object) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr(Discovery, "run", broken)
    access = Access(cluster.api.url, tmp_path, None)
    with pytest.raises(ExceptionGroup):
        await asyncio.wait_for(serve(cluster.front.settings, access, "127.0.0.1", free_port(), 1.0), 5)
