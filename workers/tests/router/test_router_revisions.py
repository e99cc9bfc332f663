"""Whole requests while engines come and go: one set of engines per request, and the newest complete one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from scripted_engines import TOKEN, chat, fails, image_part, picture
from waiting import eventually

from mmdisagg_workers.router import readiness

RED = picture("red")
ASK = chat(image_part(RED), "what is it?")
ROLES = ("encode", "prefill", "decode")


@pytest.fixture
def patience(monkeypatch):
    """Long enough for a busy machine."""
    monkeypatch.setattr(readiness, "PATIENCE_SECONDS", 15.0)


async def answers(cluster, **fields):
    reply = await cluster.post(chat(image_part(picture("red")), "what is it?", **fields))
    return (reply.status, reply.content if reply.status == 200 else reply.error["message"])


# -- which engines serve ---------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["E/P/D", "E/PD", "EP/D", "PD"])
async def test_engines_that_appear_serve(cluster, topology):
    assert (await cluster.post(ASK)).status == 503
    await cluster.revision(topology)
    await cluster.served(topology)

    assert await answers(cluster) == (200, "I see red")
    ready = (await cluster.get("/ready")).json
    assert (ready["topology"], ready["revision"]) == (topology, "r1")


@pytest.mark.parametrize("missing", ROLES)
async def test_without_an_engine_of_a_role_it_is_503_that_names_the_role(cluster, missing):
    for role in ROLES:
        if role != missing:
            await cluster.publish(await cluster.pod(role))
    await cluster.unserved(f"Revision r1 (E/P/D) has no ready {missing} engine")

    reply = await cluster.post(ASK)

    assert (reply.status, reply.error["code"]) == (503, "not_ready")
    assert f"no ready {missing} engine" in reply.error["message"]
    assert int(reply.headers["Retry-After"]) > 0
    assert (await cluster.get("/ready")).status == 503


async def test_without_any_engine_it_is_503(cluster):
    reply = await cluster.post(ASK)

    assert (reply.status, reply.headers["Retry-After"]) == (503, "2")
    assert "no ready engine" in reply.error["message"]


async def engines(cluster):
    return [await cluster.metric("mmdisagg_router_engines", role=role) for role in ROLES]


async def test_a_slice_whose_engine_is_not_ready_does_not_count(cluster):
    assert await engines(cluster) == [0, 0, 0]
    pods = await cluster.revision(decode=2)
    await cluster.served()
    await eventually(lambda: cluster.front.readiness.count("decode") == 2)
    assert await engines(cluster) == [1, 1, 2]

    await cluster.publish(pods["prefill"][0], ready=False, serving=False)

    await cluster.unserved("prefill")
    assert await engines(cluster) == [0, 0, 0]
    await cluster.publish(pods["prefill"][0])
    await cluster.served()


async def test_an_engine_that_does_not_answer_is_named(cluster):
    pods = await cluster.revision()
    await pods["decode"][0].stop()
    silent = await cluster.pod("decode")
    url = silent.url
    await silent.stop()
    await cluster.leave(pods["decode"][0])
    silent.url = url
    await cluster.publish(silent)

    await cluster.unserved("decode", url)


async def test_the_api_server_never_gets_the_stage_token_and_engines_do(cluster):
    pods = await cluster.revision()
    await cluster.served()
    await answers(cluster)

    assert pods["decode"][0].recorded[0].headers["x-mmdisagg-stage-token"] == TOKEN
    assert all(TOKEN not in sent for sent in cluster.api.tokens)


async def test_a_new_engine_of_a_role_takes_its_share(cluster):
    pods = await cluster.revision()
    second = await cluster.pod("decode")

    await cluster.publish(second)
    await cluster.pooled("decode", *pods["decode"], second)

    await asyncio.gather(*(answers(cluster) for _ in range(6)))
    assert len(second.recorded) == 3


@pytest.mark.parametrize("role", ROLES)
async def test_an_engine_that_terminates_gets_no_new_leg_and_ends_the_old_one(cluster, role):
    pods = await cluster.revision(**{role: 2})
    first, second = pods[role]
    await cluster.pooled(role, first, second)
    await cluster.leave(second)
    await cluster.pooled(role, first)
    first.hold = asyncio.Event()
    request = asyncio.create_task(answers(cluster))
    await eventually(lambda: first.active == 1)

    await cluster.publish(second)
    await cluster.pooled(role, first, second)
    await cluster.leave(first)
    await cluster.pooled(role, second)
    others = await asyncio.gather(*(cluster.post(chat(image_part(picture(f"p{i}")), "hm")) for i in range(4)))
    first.hold.set()

    assert await request == (200, "I see red")
    assert [reply.status for reply in others] == [200] * 4
    assert len(first.recorded) == 1
    assert len(second.recorded) == 4


@pytest.mark.parametrize("role", ROLES)
async def test_a_request_waits_a_moment_for_the_engine_that_takes_the_place_of_another(
    cluster, role, patience
):
    pods = await cluster.revision()
    await cluster.served()
    successor = await cluster.pod(role)
    successor.info_hold = asyncio.Event()
    await cluster.publish(successor)
    await cluster.leave(pods[role][0])
    await cluster.unserved(f"no ready {role} engine")

    request = asyncio.create_task(answers(cluster))
    await eventually(lambda: cluster.front.admission.in_flight == 1)
    successor.info_hold.set()

    assert await request == (200, "I see red")
    assert len(successor.recorded) == 1


async def test_a_request_on_its_way_waits_for_that_engine_too(cluster, patience):
    pods = await cluster.revision()
    await cluster.served()
    pods["encode"][0].hold = asyncio.Event()
    request = asyncio.create_task(answers(cluster))
    await eventually(lambda: pods["encode"][0].active == 1)
    successor = await cluster.pod("prefill")
    successor.info_hold = asyncio.Event()
    await cluster.publish(successor)
    await cluster.leave(pods["prefill"][0])
    await cluster.unserved("no ready prefill engine")

    pods["encode"][0].hold.set()
    await eventually(lambda: pods["encode"][0].active == 0)
    successor.info_hold.set()

    assert await request == (200, "I see red")
    assert (len(pods["prefill"][0].recorded), len(successor.recorded)) == (0, 1)


async def test_a_request_waits_no_longer_than_a_moment(cluster, monkeypatch):
    monkeypatch.setattr(readiness, "PATIENCE_SECONDS", 0.1)
    slow = await cluster.pod("decode", "PD")
    slow.info_hold = asyncio.Event()
    await cluster.publish(slow)
    await cluster.unserved("not asked yet")

    reply = await cluster.post(ASK)

    assert (reply.status, reply.error["code"]) == (503, "not_ready")


async def test_an_engine_at_the_address_of_an_earlier_one_is_asked_anew(cluster):
    pods = await cluster.revision("PD")
    await cluster.served("PD")
    engine = pods["decode"][0]
    await cluster.api.delete(f"decode-{engine.url.rpartition(':')[2]}")
    await cluster.unserved("no ready engine")
    engine.info = replace(engine.info, revision="r2")

    await cluster.publish(engine)

    await cluster.served("PD", "r2")


# -- engines that do not belong together ------------------------------------------------------------


async def test_an_engine_whose_revision_is_not_that_of_its_slice_is_left_out(cluster):
    pods = await cluster.revision()
    await cluster.served()
    stranger = await cluster.pod("decode", revision="r9")

    await cluster.publish(stranger, label="r1")
    await cluster.leave(pods["decode"][0])

    await cluster.unserved(stranger.url, "r9")


@pytest.mark.parametrize("changes", [{"vllm_version": "0.33.0"}, {"embedding_dtype": "float16"}])
async def test_engines_of_one_revision_that_disagree_never_share_a_request(cluster, changes):
    for role in ROLES:
        engine = await cluster.pod(role)
        if role == "decode":
            engine.info = replace(engine.info, **changes)
        await cluster.publish(engine)

    await cluster.unserved("disagree", *changes)


async def test_engines_that_the_router_cannot_serve_are_no_set(cluster):
    engine = await cluster.pod("decode", "PD")
    engine.info = replace(engine.info, contract_version=99)

    await cluster.publish(engine)

    await cluster.unserved("contract version 99")


async def test_an_unknown_topology_is_no_set(cluster):
    engine = await cluster.pod("decode", "PD")
    engine.info = replace(engine.info, topology="E/P/D/X")

    await cluster.publish(engine)

    await cluster.unserved("E/P/D/X")


# -- a new revision --------------------------------------------------------------------------------


async def test_the_newest_complete_revision_serves(cluster):
    await cluster.revision(revision="r1")
    await cluster.served(revision="r1")
    new = {role: await cluster.pod(role, revision="r2") for role in ROLES}
    for role in ("decode", "encode"):
        await cluster.publish(new[role])
        assert await answers(cluster) == (200, "I see red")
    assert not any(engine.recorded for engine in new.values())

    await cluster.publish(new["prefill"])

    await cluster.served(revision="r2")
    assert await answers(cluster) == (200, "I see red")
    assert all(engine.recorded for engine in new.values())


async def test_an_older_revision_serves_again_when_the_newer_one_is_no_longer_complete(cluster):
    await cluster.revision(revision="r1")
    new = await cluster.revision(revision="r2")
    await cluster.served(revision="r2")

    await cluster.leave(new["prefill"][0])

    await cluster.served(revision="r1")
    assert await answers(cluster) == (200, "I see red")


async def test_a_request_keeps_to_the_revision_that_it_began_with(cluster):
    old = await cluster.revision(revision="r1")
    await cluster.served(revision="r1")
    old["encode"][0].hold = asyncio.Event()
    request = asyncio.create_task(answers(cluster))
    await eventually(lambda: old["encode"][0].active == 1)

    new = await cluster.revision(revision="r2")
    await cluster.served(revision="r2")
    old["encode"][0].hold.set()

    assert await request == (200, "I see red")
    assert [len(old[role][0].recorded) for role in ROLES] == [1, 1, 1]
    assert not any(new[role][0].recorded for role in ROLES)


async def test_what_encode_said_in_one_revision_is_not_used_in_another(cluster):
    await cluster.revision(revision="r1")
    await cluster.served(revision="r1")
    await answers(cluster)
    new = await cluster.revision(revision="r2")
    await cluster.served(revision="r2")

    await answers(cluster)
    await answers(cluster)

    assert len(new["encode"][0].recorded) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_whose_revision_goes_away_under_it_starts_again_with_the_next(cluster, stream):
    old = await cluster.revision(revision="r1")
    await cluster.served(revision="r1")
    old["encode"][0].hold = asyncio.Event()
    request = asyncio.create_task(cluster.post(chat(image_part(RED), "hm", stream=stream)))
    await eventually(lambda: old["encode"][0].active == 1)
    await cluster.revision(revision="r2")
    for engines in old.values():
        await cluster.leave(engines[0])
    await cluster.served(revision="r2")
    old["encode"][0].hold.set()

    reply = await request

    assert reply.status == 200, reply.body
    assert (reply.streamed if stream else reply.content) == "I see red"
    assert cluster.log[-1]["retries"] == 1
    assert not old["decode"][0].recorded


async def test_a_request_whose_revision_goes_away_with_no_other_is_503(cluster):
    old = await cluster.revision(revision="r1")
    await cluster.served(revision="r1")
    old["encode"][0].hold = asyncio.Event()
    request = asyncio.create_task(cluster.post(ASK))
    await eventually(lambda: old["encode"][0].active == 1)
    await cluster.leave(old["prefill"][0])
    await cluster.unserved("prefill")
    old["encode"][0].hold.set()

    reply = await request

    assert (reply.status, reply.error["code"]) == (503, "not_ready")
    assert reply.headers["Retry-After"]


async def test_a_rollout_under_load_loses_no_request(cluster):
    old = await cluster.revision(revision="r1", prefill=2, decode=2)
    await cluster.served(revision="r1")
    replies = []

    async def load(number):
        while True:
            name, stream = f"p{number}-{len(replies)}", bool(number % 2)
            reply = await cluster.post(chat(image_part(picture(name)), "hm", stream=stream))
            text = reply.streamed if stream else reply.content
            replies.append((reply.status, text == f"I see {name}"))

    async def some_more():
        wanted = len(replies) + 8
        await eventually(lambda: len(replies) >= wanted or any(task.done() for task in clients))

    clients = [asyncio.create_task(load(number)) for number in range(8)]
    await some_more()
    new = {role: [await cluster.pod(role, revision="r2") for _ in old[role]] for role in ROLES}
    for engine in (engine for engines in new.values() for engine in engines):
        await cluster.publish(engine)
        await some_more()
    await cluster.served(revision="r2")
    for engine in (engine for engines in old.values() for engine in engines):
        await cluster.leave(engine)
        await some_more()
        await cluster.api.delete(f"{engine.role}-{engine.url.rpartition(':')[2]}")
        await some_more()
    for task in clients:
        task.cancel()
    ended = await asyncio.gather(*clients, return_exceptions=True)

    assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended
    assert set(replies) == {(200, True)}
    assert all(engine.recorded for engines in new.values() for engine in engines)


# -- another topology ------------------------------------------------------------------------------


@pytest.mark.case("c16")
@pytest.mark.parametrize(
    ("before", "after"), [("E/P/D", "EP/D"), ("EP/D", "E/P/D"), ("PD", "E/PD"), ("E/PD", "PD")]
)
async def test_the_topology_switches_within_a_revision_without_a_lost_request(cluster, before, after):
    old = await cluster.revision(before)
    await cluster.served(before)
    old["decode"][0].hold = asyncio.Event()
    request = asyncio.create_task(answers(cluster))
    await eventually(lambda: old["decode"][0].active == 1)

    await cluster.revision(after)
    await cluster.served(after)
    assert await answers(cluster) == (200, "I see red")
    for engines in old.values():
        await cluster.leave(engines[0])
    old["decode"][0].hold.set()

    assert await request == (200, "I see red")
    assert len(old["decode"][0].recorded) == 1
    assert await answers(cluster) == (200, "I see red")


@pytest.mark.case("c16")
async def test_a_role_that_is_removed_before_the_others_have_changed_is_named(cluster):
    old = await cluster.revision("E/P/D")
    await cluster.served("E/P/D")

    await cluster.leave(old["encode"][0])

    await cluster.unserved("E/P/D", "encode")
    await cluster.revision("EP/D")
    await cluster.served("EP/D")
    assert await answers(cluster) == (200, "I see red")


# -- the API server is away ------------------------------------------------------------------------


def knows_that_the_api_server_is_away(cluster):
    return "cannot be reached" in cluster.found.problem


async def test_requests_are_served_while_the_api_server_is_away(cluster):
    await cluster.revision()
    await cluster.served()

    await cluster.api.stop()
    await eventually(lambda: knows_that_the_api_server_is_away(cluster))

    assert await answers(cluster) == (200, "I see red")
    assert (await cluster.get("/ready")).status == 200


async def test_a_router_that_starts_while_the_api_server_is_away_says_so_and_serves_later(cluster, tmp_path):
    port = int(cluster.api.url.rpartition(":")[2])
    await cluster.api.stop()
    await cluster.discover(tmp_path)
    await eventually(lambda: knows_that_the_api_server_is_away(cluster))

    assert (await cluster.get("/health")).status == 200
    assert (await cluster.get("/ready")).status == 503
    reply = await cluster.post(ASK)
    assert (reply.status, reply.error["code"]) == (503, "not_ready")
    assert "the API server cannot be reached" in reply.error["message"]
    assert reply.headers["Retry-After"]
    await cluster.api.start(port)
    await cluster.revision()
    await cluster.served()
    assert await answers(cluster) == (200, "I see red")


async def test_an_engine_failure_of_one_set_is_no_reason_to_ask_the_same_set_again(cluster):
    pods = await cluster.revision("EP/D")
    await cluster.served("EP/D")
    pods["prefill"][0].faults = [fails(500)]

    reply = await cluster.post(ASK)

    assert reply.status == 502
    assert len(pods["prefill"][0].recorded) == 1
