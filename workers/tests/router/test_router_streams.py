"""Streams: relayed as they come, and never ending as a success when they broke."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from deadlines import DEADLINES
from scripted_engines import MODEL, changed, chat, image_part, picture
from waiting import eventually

RED = picture("red")
FAMILIES = ["Qwen2.5-VL", "LLaVA"]


def ask(**fields):
    return chat(image_part(RED), "what is it?", stream=True, **fields)


@pytest.mark.parametrize("chop", [1, 3, 64])
@pytest.mark.parametrize("family", FAMILIES)
async def test_a_stream_is_the_same_however_its_bytes_arrive(deploy, family, chop):
    deployment = await deploy(family=family)
    deployment.decode.faults = [changed(chop=chop)]

    reply = await deployment.post(ask())

    assert reply.streamed == "I see red"
    assert reply.events[-1] == "[DONE]"
    assert reply.events.count("[DONE]") == 1


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_usage_chunk_arrives_when_asked_for(deploy, family):
    deployment = await deploy(family=family)

    reply = await deployment.post(ask(stream_options={"include_usage": True}))

    assert reply.chunks[-1]["choices"] == []
    assert reply.chunks[-1]["usage"]["completion_tokens"] == 3
    assert all("usage" not in chunk for chunk in reply.chunks[:-1])


async def test_content_arrives_as_it_is_generated(deploy):
    deployment = await deploy()
    deployment.decode.faults = [changed(stall_after=1)]

    async with deployment.http.post(deployment.url + "/v1/chat/completions", json=ask()) as response:
        received = b""
        async with asyncio.timeout(3):
            while b'"I"' not in received:
                received += await response.content.readany()
    assert b"see" not in received


@pytest.mark.parametrize("stage_of_failure", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("how", ["error_after", "cut_after", "end_after"])
@pytest.mark.case("c24")
async def test_a_stream_that_breaks_ends_with_an_error_event(deploy, family, how, stage_of_failure):
    deployment = await deploy(family=family)
    deployment.decode.faults = [changed(**{how: stage_of_failure})]

    reply = await deployment.post(ask())

    assert reply.status == 200
    assert "[DONE]" not in reply.events
    last = json.loads(reply.events[-1])
    assert last["error"]["code"] in ("engine_failed", "engine_unreachable")
    assert reply.streamed == "I see red"[: [0, 1, 5][stage_of_failure]]
    assert len(deployment.decode.recorded) == 1
    await eventually(lambda: len(deployment.log) == 1)
    assert deployment.log[0]["outcome"] == "failed"


@pytest.mark.case("c24")
@pytest.mark.parametrize("family", FAMILIES)
async def test_a_stream_that_stalls_ends_with_an_error_event(deploy, family):
    deployment = await deploy(family=family, deadlines={"idle": 0.1})
    deployment.decode.faults = [changed(stall_after=2)]

    async with asyncio.timeout(DEADLINES.stage / 2):
        reply = await deployment.post(ask())

    assert json.loads(reply.events[-1])["error"]["code"] == "deadline_exceeded"
    await eventually(lambda: deployment.decode.active == 0)
    assert deployment.decode.recorded[0].gone


async def test_a_stream_that_outlives_the_request_ends_with_an_error_event(deploy):
    deployment = await deploy(deadlines={"request": 0.6})
    deployment.decode.pause = 0.25

    reply = await deployment.post(ask())

    assert reply.streamed.startswith("I")
    assert json.loads(reply.events[-1])["error"]["code"] == "deadline_exceeded"


async def test_an_engine_that_is_killed_mid_stream_ends_with_an_error_event(deploy):
    deployment = await deploy()
    deployment.decode.faults = [changed(stall_after=2)]
    request = asyncio.create_task(deployment.post(ask()))
    await eventually(lambda: deployment.decode.active == 1)
    await asyncio.sleep(0.05)

    await deployment.decode.stop()

    reply = await request
    assert "[DONE]" not in reply.events
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_unreachable"


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_client_that_leaves_mid_stream_stops_decode(deploy, family):
    deployment = await deploy(family=family)
    deployment.decode.faults = [changed(stall_after=2)]

    async with deployment.http.post(deployment.url + "/v1/chat/completions", json=ask()) as response:
        await response.content.readany()
        response.close()

    await eventually(lambda: deployment.decode.active == 0)
    assert deployment.decode.recorded[0].gone
    await eventually(lambda: len(deployment.log) == 1)
    assert deployment.log[0]["outcome"] == "client_gone"


async def test_connections_to_decode_are_used_again_after_a_stream(deploy):
    deployment = await deploy()
    peers = set()

    async def note(engine, request, body):
        peers.add(request.transport.get_extra_info("peername"))

    deployment.decode.faults = [note] * 4
    for _ in range(4):
        assert (await deployment.post(ask())).streamed == "I see red"

    assert len(peers) == 1


async def test_a_comment_that_keeps_the_connection_alive_passes(deploy):
    deployment = await deploy("PD")

    async def with_comment(engine, request, body):
        from aiohttp import web

        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chunk = {"choices": [{"index": 0, "delta": {"content": "hi"}, "token_ids": None}], "model": MODEL}
        await response.write(b": keep-alive\n\ndata: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    deployment.decode.faults = [with_comment]

    reply = await deployment.post(chat("hi", stream=True))

    assert reply.body.startswith(b": keep-alive\n\n")
    assert reply.events[-1] == "[DONE]"


# -- clients that take their time ------------------------------------------------------------------

PIECE = "x" * 1_000_000
PIECES = 24
"""More than the buffers of both sides of a connection hold."""


async def writes_much(engine, request, body):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(PIECES):
        chunk = {"choices": [{"index": 0, "delta": {"content": PIECE}}]}
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def ask_and_read_nothing(deployment):
    """Send a request for a stream, and return what would read it."""
    host, port = deployment.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**16)
    body = json.dumps(chat("hi", stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def test_a_client_that_reads_slowly_costs_no_idle_time_of_decode(deploy):
    deployment = await deploy("PD", deadlines={"idle": 0.5, "request": 30, "write": 20})
    deployment.decode.faults = [writes_much]
    reader, writer = await ask_and_read_nothing(deployment)
    await eventually(lambda: deployment.decode.active == 1)
    await asyncio.sleep(1.0)

    received = bytearray()
    async with asyncio.timeout(20):
        while b"[DONE]" not in received[-100:]:
            piece = await reader.read(2**20)
            assert piece, received[-500:]
            received += piece

    assert received.count(PIECE.encode()) == PIECES
    writer.close()
    await eventually(lambda: [line["outcome"] for line in deployment.log] == ["ok"])


async def test_a_client_that_does_not_read_is_given_up(deploy):
    deployment = await deploy("PD", deadlines={"write": 0.2}, max_in_flight=1)
    deployment.decode.faults = [writes_much]
    _, writer = await ask_and_read_nothing(deployment)

    await eventually(lambda: [line["outcome"] for line in deployment.log] == ["client_slow"])

    await eventually(lambda: deployment.decode.active == 0)
    assert deployment.decode.recorded[0].gone
    assert (await deployment.post(chat("hi"))).status == 200
    writer.close()
