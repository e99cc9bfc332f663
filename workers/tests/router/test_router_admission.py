"""Admission: a limit of requests in flight, an error that says when to come back, and no lost slots."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripted_engines import MODEL, changed, chat, drops, fails, image_part, picture
from waiting import eventually

RED = picture("red")
PATHS = {
    "/v1/chat/completions": chat("hi"),
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
}
REQUESTS = "mmdisagg_router_requests_total"


async def held(deployment, count):
    """Start `count` requests that decode does not answer."""
    deployment.decode.hold = asyncio.Event()
    tasks = [asyncio.create_task(deployment.post(chat("hi"))) for _ in range(count)]
    await eventually(lambda: deployment.decode.active == count)
    return tasks


async def in_flight(deployment):
    return await deployment.metric("mmdisagg_router_requests_in_flight")


@pytest.mark.parametrize("path", PATHS)
async def test_above_the_limit_a_request_is_429_with_retry_after(deploy, path):
    deployment = await deploy("PD", max_in_flight=2)
    tasks = await held(deployment, 2)

    reply = await deployment.post(PATHS[path], path)

    assert reply.status == 429
    assert (reply.error["type"], reply.error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert reply.error["param"] is None
    assert "at most 2" in reply.error["message"]
    assert int(reply.headers["Retry-After"]) > 0
    assert reply.headers["x-request-id"]
    assert len(deployment.decode.recorded) == 2
    assert await in_flight(deployment) == 2
    assert await deployment.metric("mmdisagg_router_requests_in_flight_limit") == 2
    assert await deployment.metric(REQUESTS, path=path, outcome="overloaded") == 1
    deployment.decode.hold.set()
    assert [reply.status for reply in await asyncio.gather(*tasks)] == [200, 200]
    assert await in_flight(deployment) == 0


async def test_other_paths_answer_while_no_more_requests_are_admitted(deploy):
    deployment = await deploy("PD", max_in_flight=1)
    (task,) = await held(deployment, 1)

    for path in ("/health", "/ready", "/metrics", "/v1/models"):
        assert (await deployment.get(path)).status == 200

    deployment.decode.hold.set()
    await task


async def test_a_body_that_is_not_admitted_is_not_waited_for(deploy):
    deployment = await deploy("PD", max_in_flight=1)
    (task,) = await held(deployment, 1)
    host, port = deployment.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n{")

    async with asyncio.timeout(2):
        assert b" 429 " in await reader.readline()
    writer.close()
    deployment.decode.hold.set()
    await task


async def test_a_large_body_that_is_not_admitted_still_gets_its_answer(deploy):
    deployment = await deploy("PD", max_in_flight=1)
    (task,) = await held(deployment, 1)

    assert (await deployment.post(b" " * 1_000_000)).status == 429

    deployment.decode.hold.set()
    await task


async def test_a_client_that_is_still_sending_holds_a_slot(deploy):
    deployment = await deploy("PD", max_in_flight=1)
    host, port = deployment.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n{")
    await eventually(lambda: deployment.front.admission.in_flight == 1)

    assert (await deployment.post(chat("hi"))).status == 429

    writer.close()
    await eventually(lambda: deployment.front.admission.in_flight == 0)
    assert (await deployment.post(chat("hi"))).status == 200


async def half_sent(deployment, headers):
    """Begin a request that says what `headers` say, and send 600 bytes of it."""
    host, port = deployment.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = b" " * 600
    if b"chunked" in headers:
        body = b"258\r\n" + body + b"\r\n"
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n\r\n" + body)
    await eventually(lambda: deployment.front.admission.body_bytes >= 600)
    return writer


@pytest.mark.parametrize("headers", [b"Content-Length: 700", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_that_together_are_too_large_are_429_until_one_is_done(deploy, headers, chunked):
    deployment = await deploy("PD", max_bytes_in_flight=1000)
    writer = await half_sent(deployment, headers)
    body = json.dumps(chat("x" * 500)).encode()

    async def pieces():
        yield body[:300]
        yield body[300:]

    reply = await deployment.post(pieces() if chunked else body)

    assert (reply.status, reply.error["code"]) == (429, "rate_limit_exceeded")
    assert "at most 1000" in reply.error["message"]
    assert (await deployment.post(chat("hi"))).status == 200
    writer.close()
    await eventually(lambda: deployment.front.admission.body_bytes == 0)
    assert (await deployment.post(pieces() if chunked else body)).status == 200


async def test_a_body_larger_than_all_may_be_together_is_served_alone(deploy):
    deployment = await deploy("PD", max_bytes_in_flight=10)

    assert (await deployment.post(chat("x" * 500))).status == 200


async def test_a_body_that_does_not_come_frees_its_slot(deploy):
    deployment = await deploy("PD", max_in_flight=1, deadlines={"body": 0.2})
    await half_sent(deployment, b"Content-Length: 700")

    await eventually(lambda: deployment.front.admission.in_flight == 0)

    assert (await deployment.post(chat("hi"))).status == 200


FAULTS = {
    "ok": None,
    "refused": fails(400),
    "failed": fails(500),
    "dropped": drops,
    "broken stream": changed(error_after=1),
    "cut stream": changed(cut_after=1),
    "stalled stream": changed(stall_after=1),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
async def test_however_a_request_ends_its_slot_is_free_again(deploy, fault, stream):
    deployment = await deploy(max_in_flight=1, deadlines={"idle": 0.2})
    deployment.decode.faults = [FAULTS[fault]] * 2

    await deployment.post(chat(image_part(RED), "hm", stream=stream))

    deployment.decode.faults = []
    await eventually(lambda: deployment.front.admission.in_flight == 0)
    assert (await deployment.post(chat("hi"))).status == 200


@pytest.mark.parametrize("body", [b"{", chat("hi", priority=1), chat("hi") | {"model": "other"}])
async def test_a_refused_request_frees_its_slot(deploy, body):
    deployment = await deploy(max_in_flight=1)

    assert (await deployment.post(body)).status in (400, 404)

    assert (await deployment.post(chat("hi"))).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_slot(deploy, stream):
    deployment = await deploy("PD", max_in_flight=1)
    deployment.decode.faults = [changed(stall_after=1)]
    if not stream:
        deployment.decode.hold = asyncio.Event()
    task = asyncio.create_task(deployment.post(chat("hi", stream=stream)))
    await eventually(lambda: deployment.decode.active == 1)

    task.cancel()

    await eventually(lambda: deployment.front.admission.in_flight == 0)
    deployment.decode.hold, deployment.decode.faults = None, []
    assert (await deployment.post(chat("hi"))).status == 200


async def test_a_burst_far_above_the_limit_is_served_or_told_to_come_back(deploy):
    deployment = await deploy("PD", max_in_flight=4)
    deployment.decode.pause = 0.01

    replies = await asyncio.gather(*(deployment.post(chat("hi", stream=True)) for _ in range(40)))

    statuses = [reply.status for reply in replies]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 4
    assert all(reply.streamed == "I see text" for reply in replies if reply.status == 200)
    assert await in_flight(deployment) == 0
