"""Engines that refuse, fail, break off, hang or vanish: what is tried again, and what the client learns."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import suppress

import pytest
from aiohttp import web
from scripted_engines import (
    changed,
    chat,
    drops,
    fails,
    hangs,
    image_part,
    picture,
    says,
)
from waiting import eventually

RED = picture("red")
STAGES = [
    ("E/P/D", "encode"),
    ("E/P/D", "prefill"),
    ("E/P/D", "decode"),
    ("E/PD", "encode"),
    ("E/PD", "decode"),
    ("EP/D", "prefill"),
    ("EP/D", "decode"),
    ("PD", "decode"),
]


def ask(**fields):
    return chat(image_part(RED), "what is it?", **fields)


def counts(deployment):
    return {role: sum(len(e.recorded) for e in group) for role, group in deployment.engines.items()}


# -- 4xx: the client's fault, once -----------------------------------------------------------------


@pytest.mark.case("c03")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 404, 422, 429])
@pytest.mark.parametrize(("topology", "stage"), STAGES)
async def test_an_engines_refusal_passes_through_and_is_never_retried(
    deploy, topology, stage, status, stream
):
    deployment = await deploy(topology)
    deployment.engines[stage][0].faults = [fails(status, "the picture is cut short")]

    reply = await deployment.post(ask(stream=stream))

    assert reply.status == status
    assert reply.error["message"] == "the picture is cut short"
    assert counts(deployment)[stage] == 1
    assert (await deployment.post(ask())).content == "I see red"


@pytest.mark.case("c03")
@pytest.mark.parametrize("topology", ["E/P/D", "E/PD", "EP/D", "PD"])
async def test_a_broken_picture_is_refused_with_the_reason(deploy, topology):
    deployment = await deploy(topology)

    reply = await deployment.post(chat(image_part(picture("broken")), "hm"))

    assert reply.status == 400
    assert "truncated" in reply.error["message"]
    assert sum(counts(deployment).values()) == 1


async def test_one_broken_picture_of_several_ends_the_request_and_cancels_the_others(deploy):
    deployment = await deploy(encode=2)
    slow, fast = deployment.engines["encode"]
    slow.faults = [hangs]
    fast.faults = [fails(400, "cut short")]

    reply = await deployment.post(chat(image_part(RED), image_part(picture("blue"))))

    assert (reply.status, reply.error["message"]) == (400, "cut short")
    await eventually(lambda: slow.active == 0)
    assert slow.recorded[0].gone
    assert counts(deployment)["prefill"] == 0


async def test_a_wrong_stage_token_is_no_fault_of_the_client(deploy):
    deployment = await deploy()
    deployment.encode.token = "another-token"

    reply = await deployment.post(ask())

    assert (reply.status, reply.error["code"]) == (502, "engine_failed")


@pytest.mark.parametrize("stream_status", [400])
async def test_a_refusal_that_comes_as_a_streams_first_event_keeps_its_status(deploy, stream_status):
    deployment = await deploy()
    deployment.decode.faults = [changed(error_after=0, error_code=stream_status)]

    reply = await deployment.post(ask(stream=True))

    assert reply.status == stream_status
    assert len(deployment.decode.recorded) == 1


# -- encode fails ----------------------------------------------------------------------------------


async def reports_nothing(engine, request, body):
    reply = await engine.serve(request, body)
    answer = json.loads(reply.body)
    del answer["ec_transfer_params"]
    return web.json_response(answer)


@pytest.mark.parametrize("fault", [fails(500), fails(503), reports_nothing])
@pytest.mark.parametrize("topology", ["E/P/D", "E/PD"])
async def test_a_medium_whose_encode_fails_is_encoded_once_more_elsewhere(deploy, topology, fault):
    deployment = await deploy(topology, encode=2)
    first, second = deployment.engines["encode"]
    first.faults = [fault] * 4

    replies = [await deployment.post(chat(image_part(picture(f"p{i}")), "hm")) for i in range(4)]

    assert [reply.content for reply in replies] == [f"I see p{i}" for i in range(4)]
    assert len(second.recorded) == 4
    assert await deployment.metric("mmdisagg_router_retries_total") == len(first.recorded) > 0


@pytest.mark.parametrize("fault", [fails(500), reports_nothing])
async def test_a_medium_is_not_encoded_a_third_time(deploy, fault):
    deployment = await deploy()
    deployment.encode.faults = [fault] * 3

    reply = await deployment.post(ask())

    assert (reply.status, reply.error["code"]) == (502, "engine_failed")
    assert counts(deployment) | {"encode": 2, "prefill": 0} == counts(deployment)


# -- lost embeddings -------------------------------------------------------------------------------


@pytest.mark.case("t07")
@pytest.mark.case("x01")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("topology", "loads"), [("E/P/D", "prefill"), ("E/PD", "decode")])
async def test_a_lost_embedding_is_encoded_once_more(deploy, topology, loads, stream):
    deployment = await deploy(topology)
    deployment.engines[loads][0].faults = [fails(500)]

    reply = await deployment.post(ask(stream=stream))

    assert (reply.streamed if stream else reply.content) == "I see red"
    assert counts(deployment) | {"encode": 2, loads: 2} == counts(deployment)
    assert await deployment.metric("mmdisagg_router_re_encodes_total") == 1


@pytest.mark.parametrize(("topology", "loads"), [("E/P/D", "prefill"), ("E/PD", "decode")])
async def test_an_embedding_is_encoded_again_only_once(deploy, topology, loads):
    deployment = await deploy(topology)
    deployment.engines[loads][0].faults = [fails(500), fails(503), fails(500)]

    reply = await deployment.post(ask())

    assert (reply.status, reply.error["code"]) == (502, "engine_failed")
    assert counts(deployment)["encode"] == counts(deployment)[loads] == 2


async def test_after_a_second_fetch_brought_other_bytes_no_identity_of_the_first_is_used(deploy):
    deployment = await deploy()
    first, second = "https://x/old.1x4x4", "https://x/new.1x4x8"

    async def other_bytes(engine, request, body):
        body["messages"][0]["content"][0]["image_url"]["url"] = second
        return await engine.serve(request, body)

    deployment.encode.faults = [None, other_bytes]
    deployment.prefill.faults = [fails(500)]

    reply = await deployment.post(chat(image_part(first), "hm"))

    assert reply.content == "I see new"
    old = deployment.prefill.bodies[0]["messages"][0]["content"][0]["uuid"]
    assert old not in str(deployment.prefill.bodies[1])
    assert old not in str(deployment.decode.bodies)


@pytest.mark.parametrize("topology", ["E/P/D", "EP/D"])
async def test_a_prefill_failure_without_embeddings_is_final(deploy, topology):
    deployment = await deploy(topology)
    deployment.prefill.faults = [fails(500, "boom")]

    reply = await deployment.post(chat("hello"))

    assert (reply.status, reply.error["code"]) == (502, "engine_failed")
    assert "boom" in reply.error["message"]
    assert counts(deployment)["prefill"] == 1


# -- decode fails before its first token ------------------------------------------------------------


@pytest.mark.case("x05")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", [fails(500), drops, changed(error_after=0), changed(cut_after=0)])
@pytest.mark.parametrize("topology", ["E/P/D", "EP/D"])
async def test_decode_is_tried_once_more_after_a_new_prefill(deploy, topology, fault, stream):
    deployment = await deploy(topology)
    # The last two faults are a stream's: an error, or an end, behind the chunk that names the role.
    deployment.decode.faults = [fault if stream or fault in (drops,) else fails(500)]

    reply = await deployment.post(ask(stream=stream))

    assert (reply.streamed if stream else reply.content) == "I see red"
    assert counts(deployment)["prefill"] == counts(deployment)["decode"] == 2
    first, second = (body["kv_transfer_params"]["remote_request_id"] for body in deployment.decode.bodies)
    assert first != second
    assert await deployment.metric("mmdisagg_router_retries_total") == 1


@pytest.mark.parametrize("topology", ["E/P/D", "EP/D"])
async def test_decode_is_tried_again_only_once(deploy, topology):
    deployment = await deploy(topology)
    deployment.decode.faults = [fails(500), fails(500), fails(500)]

    reply = await deployment.post(ask())

    assert (reply.status, reply.error["code"]) == (502, "engine_failed")
    assert counts(deployment)["decode"] == 2


async def test_the_second_try_goes_to_another_engine(deploy):
    deployment = await deploy(decode=2)
    for engine in deployment.engines["decode"]:
        engine.faults = [fails(500)]
    deployment.engines["decode"][1].faults = []

    for _ in range(4):
        assert (await deployment.post(ask())).content == "I see red"

    first, second = deployment.engines["decode"]
    assert len(first.recorded) >= 1
    assert len(second.recorded) >= 3


@pytest.mark.parametrize("topology", ["E/PD", "PD"])
async def test_a_broken_connection_to_decode_that_prefills_itself_is_tried_again(deploy, topology):
    deployment = await deploy(topology)
    deployment.decode.faults = [drops]

    assert (await deployment.post(ask())).content == "I see red"


async def test_a_failure_of_an_engine_that_does_everything_is_final(deploy):
    deployment = await deploy("PD")
    deployment.decode.faults = [fails(500)]

    assert (await deployment.post(ask())).status == 502
    assert counts(deployment)["decode"] == 1


# -- engines that cannot be reached ----------------------------------------------------------------


@pytest.mark.parametrize(("topology", "stage"), STAGES)
async def test_a_dead_engine_is_passed_over_while_another_lives(deploy, topology, stage):
    deployment = await deploy(topology, **{stage: 2})
    await deployment.engines[stage][0].stop()

    replies = [await deployment.post(chat(image_part(picture(f"p{i}")), "hm")) for i in range(4)]

    assert [reply.content for reply in replies] == [f"I see p{i}" for i in range(4)]
    assert await deployment.metric("mmdisagg_router_retries_total") <= 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("topology", "stage"), STAGES)
async def test_without_a_living_engine_the_client_gets_an_error_soon(deploy, topology, stage, stream):
    deployment = await deploy(topology)
    await deployment.engines[stage][0].stop()

    started = time.monotonic()
    reply = await deployment.post(ask(stream=stream))

    assert (reply.status, reply.error["code"]) == (502, "engine_unreachable")
    assert stage in reply.error["message"]
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(("topology", "stage"), STAGES)
async def test_after_a_restart_on_the_same_address_requests_are_right_again(deploy, topology, stage):
    deployment = await deploy(topology)
    engine = deployment.engines[stage][0]
    assert (await deployment.post(ask())).content == "I see red"
    port = int(engine.url.rpartition(":")[2])

    await engine.stop()
    assert (await deployment.post(chat(image_part(picture("blue")), "hm"))).status == 502
    await engine.start(port)

    assert (await deployment.post(ask())).content == "I see red"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("topology", "stage"), STAGES)
async def test_an_engine_killed_in_the_middle_of_requests_leaves_none_hanging(
    deploy, topology, stage, stream
):
    deployment = await deploy(topology, **{stage: 2})
    victim = deployment.engines[stage][0]
    victim.hold = asyncio.Event()
    bodies = [chat(image_part(picture(f"p{i}")), "hm", stream=stream) for i in range(10)]
    requests = [asyncio.create_task(deployment.post(body)) for body in bodies]
    await eventually(lambda: victim.active > 0)

    await victim.stop()

    for index, reply in enumerate(await asyncio.gather(*requests)):
        assert reply.status == 200
        assert (reply.streamed if stream else reply.content) == f"I see p{index}"


# -- deadlines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("topology", "stage"), STAGES)
async def test_an_engine_that_hangs_ends_in_a_timeout(deploy, topology, stage, stream):
    deployment = await deploy(topology, deadlines={"stage": 0.3, "request": 0.6})
    engine = deployment.engines[stage][0]
    engine.faults = [hangs]

    reply = await deployment.post(ask(stream=stream))

    assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
    assert stage in reply.error["message"]
    await eventually(lambda: engine.active == 0)
    assert engine.recorded[0].gone
    assert len(engine.recorded) == 1


async def test_an_engine_that_takes_no_connections_is_given_up_soon(deploy):
    deployment = await deploy("PD", deadlines={"connect": 0.1})
    port = int(deployment.decode.url.rpartition(":")[2])
    await deployment.decode.stop()
    # A full backlog swallows further connections without an answer.
    with socket.create_server(("127.0.0.1", port), backlog=0), socket.create_connection(("127.0.0.1", port)):
        with suppress(TimeoutError):
            socket.create_connection(("127.0.0.1", port), 0.05).close()

        started = time.monotonic()
        reply = await deployment.post(chat("hi"))

    assert (reply.status, reply.error["code"]) == (502, "engine_unreachable")
    assert time.monotonic() - started < 2


# -- answers that are none -------------------------------------------------------------------------


@pytest.mark.parametrize(("topology", "stage"), STAGES)
async def test_an_unreadable_answer_is_an_error(deploy, topology, stage):
    deployment = await deploy(topology)

    for body in (b"<html>", b"{", b"[]", b'{"choices": 7}'):
        deployment.engines[stage][0].faults = [says(body)] * 3
        reply = await deployment.post(ask())
        assert (reply.status, reply.error["code"]) == (502, "engine_failed")
        deployment.engines[stage][0].faults = []


async def test_a_prefill_that_hands_over_nothing_is_an_error(deploy):
    deployment = await deploy()
    deployment.prefill.faults = [says(b'{"choices": [], "prompt_token_ids": [1]}')]

    reply = await deployment.post(chat("hello"))

    assert (reply.status, reply.error["code"]) == (502, "engine_failed")
    assert "kv_transfer_params" in reply.error["message"]


# -- the client goes away --------------------------------------------------------------------------


@pytest.mark.parametrize(("topology", "stage"), STAGES)
async def test_a_client_that_leaves_cancels_the_stage_at_work(deploy, topology, stage):
    deployment = await deploy(topology)
    engine = deployment.engines[stage][0]
    engine.hold = asyncio.Event()
    request = asyncio.create_task(deployment.post(ask()))
    await eventually(lambda: engine.active == 1)

    request.cancel()

    await eventually(lambda: engine.active == 0)
    assert engine.recorded[0].gone
    await eventually(lambda: len(deployment.log) == 1)
    assert deployment.log[0]["outcome"] == "client_gone"
    assert await deployment.metric("mmdisagg_router_requests_in_flight") == 0


async def test_a_client_that_leaves_cancels_all_encode_legs(deploy):
    deployment = await deploy()
    deployment.encode.hold = asyncio.Event()
    body = chat(*[image_part(picture(f"p{i}")) for i in range(5)])
    request = asyncio.create_task(deployment.post(body))
    await eventually(lambda: deployment.encode.active == 5)

    request.cancel()

    await eventually(lambda: deployment.encode.active == 0)
    assert counts(deployment)["prefill"] == 0
