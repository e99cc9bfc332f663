"""Whole requests through scripted engines: what goes where, in which order, and what comes back."""

from __future__ import annotations

import asyncio

import pytest
from scripted_engines import (
    MODEL,
    TOKEN,
    changed,
    chat,
    identity_of,
    image_part,
    picture,
    text_part,
    video,
    video_part,
)
from waiting import eventually

from mmdisagg_workers.contract import DecodeForm, decode_descriptor

TOPOLOGIES = ("E/P/D", "E/PD", "EP/D", "PD")
HANDOFFS = ("E/P/D", "EP/D")
RED, BLUE = picture("red"), picture("blue")


def everyone(deployment):
    return [engine for group in deployment.engines.values() for engine in group]


# -- answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("family", ["Qwen2-VL", "Qwen2.5-VL", "LLaVA"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_a_picture_is_answered(deploy, topology, family, stream):
    deployment = await deploy(topology, family=family)

    reply = await deployment.post(chat(image_part(RED), "what is it?", stream=stream))

    assert reply.status == 200, reply.body
    assert (reply.streamed if stream else reply.content) == "I see red"


@pytest.mark.parametrize("form", list(DecodeForm))
async def test_every_decode_form_answers_and_carries_what_it_should(deploy, form):
    family = "LLaVA" if form is DecodeForm.EXPANDED_PROMPT else "Qwen2.5-VL"
    deployment = await deploy(family=family, form=form)

    assert (await deployment.post(chat(image_part(RED), "hm"))).content == "I see red"

    body = deployment.decode.bodies[0]
    if form is DecodeForm.EXPANDED_PROMPT:
        assert deployment.decode.recorded[0].path == "/v1/completions"
        assert "messages" not in body
    else:
        facts = body["messages"][0]["content"][0]["image_embeds"]
        assert ("image_embeds" in facts) is (form is DecodeForm.ZERO_EMBEDDING)


@pytest.mark.case("c06")
@pytest.mark.parametrize("family", ["Qwen2.5-VL", "LLaVA"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_several_pictures_are_all_used_in_their_order(deploy, topology, family):
    deployment = await deploy(topology, family=family)
    pictures = [picture("a", (1, 4, 8)), picture("b", (1, 8, 4)), picture("c", (1, 4, 4))]

    reply = await deployment.post(
        chat("x", image_part(pictures[2]), "y", image_part(pictures[0]), image_part(pictures[1]))
    )

    assert reply.content == "I see c and a and b"


@pytest.mark.case("c02")
@pytest.mark.parametrize("family", ["Qwen2.5-VL", "LLaVA"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_pictures_of_one_size_each_get_their_own_answer(deploy, topology, family):
    deployment = await deploy(topology, family=family)

    replies = [await deployment.post(chat(image_part(url), "hm")) for url in (RED, BLUE, RED)]

    assert [reply.content for reply in replies] == ["I see red", "I see blue", "I see red"]


@pytest.mark.parametrize("family", ["Qwen2.5-VL", "LLaVA"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_requests_side_by_side_do_not_mix(deploy, topology, family):
    deployment = await deploy(topology, family=family, decode=2)

    bodies = [chat(image_part(picture(f"p{i}")), "hm", stream=i % 2 == 0) for i in range(24)]
    replies = await asyncio.gather(*map(deployment.post, bodies))

    assert [r.streamed if i % 2 == 0 else r.content for i, r in enumerate(replies)] == [
        f"I see p{i}" for i in range(24)
    ]


@pytest.mark.case("c21")
@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_a_video_and_a_picture_each_travel_with_their_own_grid(deploy, topology):
    deployment = await deploy(topology)

    reply = await deployment.post(chat(video_part(video("clip", (4, 8, 4))), "and", image_part(RED)))

    assert reply.content == "I see clip and red"
    if topology in HANDOFFS:
        clip, _, red = deployment.decode.bodies[0]["messages"][0]["content"]
        assert decode_descriptor(clip["video_embeds"]["video_grid_thw"]).values == (4, 8, 4)
        assert decode_descriptor(clip["video_embeds"]["second_per_grid_ts"]).values == (2.0,)
        assert decode_descriptor(red["image_embeds"]["image_grid_thw"]).values == (1, 4, 4)


@pytest.mark.case("c07")
@pytest.mark.parametrize("family", ["Qwen2.5-VL", "LLaVA"])
async def test_text_as_a_list_of_parts_is_answered_as_a_string_is(deploy, family):
    deployment = await deploy(family=family)

    for content in ("hello", [text_part("hello")], [text_part("hel"), text_part("lo")]):
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        assert (await deployment.post(body)).content == "I see text"
    assert deployment.prefill.bodies[0]["messages"] == deployment.decode.bodies[0]["messages"]


@pytest.mark.parametrize("topology", ["E/P/D", "E/PD"])
async def test_text_skips_encode(deploy, topology):
    deployment = await deploy(topology)

    assert (await deployment.post(chat("hello"))).content == "I see text"

    assert deployment.encode.recorded == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_a_text_completion_is_answered(deploy, topology, stream):
    deployment = await deploy(topology)
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 9, "stream": stream}

    reply = await deployment.post(body, "/v1/completions")

    if stream:
        assert "".join(c["text"] for chunk in reply.chunks for c in chunk["choices"]) == "I see text"
        assert reply.events[-1] == "[DONE]"
    else:
        assert reply.json["choices"][0]["text"] == "I see text"
    assert b"token_ids" not in reply.body
    assert deployment.decode.bodies[0]["max_tokens"] == 9


async def test_several_sequences_reach_an_engine_that_prefills_itself(deploy):
    deployment = await deploy("PD")

    assert (await deployment.post(chat("hi", n=2))).status == 200
    assert deployment.decode.bodies[0]["n"] == 2


# -- order, identity, tokens -----------------------------------------------------------------------


async def test_encode_legs_run_side_by_side_and_before_prefill(deploy):
    deployment = await deploy()
    deployment.encode.hold = asyncio.Event()
    request = asyncio.create_task(deployment.post(chat(*[image_part(picture(f"p{i}")) for i in range(4)])))

    await eventually(lambda: deployment.encode.active == 4)
    assert deployment.prefill.recorded == []
    deployment.encode.hold.set()

    assert (await request).status == 200


async def test_encode_legs_spread_over_the_encode_engines(deploy):
    deployment = await deploy(encode=2)
    for engine in deployment.engines["encode"]:
        engine.hold = asyncio.Event()
    request = asyncio.create_task(deployment.post(chat(*[image_part(picture(f"p{i}")) for i in range(4)])))

    await eventually(lambda: [e.active for e in deployment.engines["encode"]] == [2, 2])
    for engine in deployment.engines["encode"]:
        engine.hold.set()
    assert (await request).status == 200


@pytest.mark.case("c11")
@pytest.mark.parametrize(
    ("topology", "fetches"), [("E/P/D", "encode"), ("E/PD", "encode"), ("EP/D", "prefill"), ("PD", "decode")]
)
async def test_a_url_reaches_exactly_one_leg_of_the_role_that_fetches(deploy, topology, fetches):
    deployment = await deploy(topology)
    url = "https://pictures.example/cat.1x4x4"

    reply = await deployment.post(chat(image_part(url), "hm"))

    assert reply.status == 200, reply.body
    found = [
        (e.role, record) for e in everyone(deployment) for record in e.recorded if url in str(record.body)
    ]
    assert [role for role, _ in found] == [fetches]


@pytest.mark.case("c11")
async def test_a_url_named_twice_is_fetched_once(deploy):
    deployment = await deploy()
    url = "https://pictures.example/cat.1x4x4"

    assert (await deployment.post(chat(image_part(url), "and", image_part(url)))).status == 200

    assert len(deployment.encode.recorded) == 1
    assert deployment.prefill.bodies[0]["ec_transfer_params"][identity_of(url)]["item_indices"] == [0, 1]


async def test_an_inline_picture_seen_before_is_not_encoded_again_but_one_behind_a_url_is(deploy):
    deployment = await deploy()

    for url in (RED, RED, "https://x/cat.1x4x4", "https://x/cat.1x4x4"):
        assert (await deployment.post(chat(image_part(url), "hm"))).status == 200

    assert len(deployment.encode.recorded) == 3


@pytest.mark.case("c25")
async def test_processor_arguments_change_the_identity(deploy):
    deployment = await deploy()
    arguments = {"max_pixels": 9}

    for fields in ({}, {"mm_processor_kwargs": arguments}):
        assert (await deployment.post(chat(image_part(RED), "hm", **fields))).status == 200

    named = [body["messages"][0]["content"][0]["uuid"] for body in deployment.decode.bodies]
    assert named == [identity_of(RED), identity_of(RED, arguments)]


@pytest.mark.case("t03")
@pytest.mark.parametrize("topology", HANDOFFS)
async def test_decode_always_gets_the_identity(deploy, topology):
    deployment = await deploy(topology)

    await deployment.post(chat(image_part(RED), "hm"))

    assert deployment.decode.bodies[0]["messages"][0]["content"][0]["uuid"] == identity_of(RED)


@pytest.mark.case("t04")
@pytest.mark.parametrize("topology", HANDOFFS)
async def test_an_expanded_prompt_always_gets_its_own_salt(deploy, topology):
    deployment = await deploy(topology, family="LLaVA")

    for url in (RED, BLUE, RED):
        await deployment.post(chat(image_part(url), "hm"))

    first, second, third = (body["cache_salt"] for body in deployment.decode.bodies)
    assert first == third != second
    assert deployment.decode.bodies[0]["prompt"] == deployment.decode.bodies[1]["prompt"]


@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_every_leg_carries_the_stage_token_and_an_id_of_its_own(deploy, topology):
    deployment = await deploy(topology)

    for _ in range(2):
        reply = await deployment.post(chat(image_part(RED), "hm"), headers={"x-request-id": "mine-1"})
        assert reply.headers["x-request-id"] == "mine-1"

    legs = [record for engine in everyone(deployment) for record in engine.recorded]
    assert {record.headers["x-mmdisagg-stage-token"] for record in legs} == {TOKEN}
    ids = [record.headers["X-Request-ID"] for record in legs]
    assert len(set(ids)) == len(ids)
    for engine in everyone(deployment):
        for record in engine.recorded:
            assert record.headers["X-Request-ID"].startswith("mine-1.")
            assert record.headers["X-Request-ID"].endswith(engine.role)


@pytest.mark.parametrize("offered", ["", "a b", "x" * 200, "../../etc", "ü", "a;b"])
async def test_a_strange_request_id_is_replaced(deploy, offered):
    deployment = await deploy("PD")

    reply = await deployment.post(chat("hi"), headers={"x-request-id": offered})

    assert reply.headers["x-request-id"] != offered
    assert reply.headers["x-request-id"].startswith("req-")


# -- token ids -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("family", ["Qwen2.5-VL", "LLaVA"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_token_ids_and_transfer_parameters_stay_inside(deploy, topology, family, stream):
    deployment = await deploy(topology, family=family)

    reply = await deployment.post(chat(image_part(RED), "hm", stream=stream))

    assert b"token_ids" not in reply.body
    assert b"transfer_params" not in reply.body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("family", ["Qwen2.5-VL", "LLaVA"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_a_client_that_asks_for_token_ids_gets_them(deploy, topology, family, stream):
    deployment = await deploy(topology, family=family)

    reply = await deployment.post(chat(image_part(RED), "hm", stream=stream, return_token_ids=True))

    if stream:
        prompt = reply.chunks[0]["prompt_token_ids"]
        tokens = [i for chunk in reply.chunks for c in chunk["choices"] for i in c.get("token_ids") or ()]
        assert tokens == [100, 101, 102]
    else:
        prompt = reply.json["prompt_token_ids"]
        assert reply.json["choices"][0]["token_ids"] == [100, 101, 102, 103]
    assert len(prompt) > 4


@pytest.mark.case("t05")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("family", ["Qwen2.5-VL", "LLaVA"])
@pytest.mark.parametrize("prompt", [[1, 2, 3], [], None])
async def test_another_prompt_on_decode_is_an_error_and_nothing_leaks(deploy, family, stream, prompt):
    deployment = await deploy(family=family)
    deployment.decode.faults = [changed(prompt=prompt)]

    reply = await deployment.post(chat(image_part(RED), "hm", stream=stream))

    assert reply.status == 500
    assert reply.error["code"] == "prompt_mismatch"
    assert b"red" not in reply.body
    assert len(deployment.decode.recorded) == 1


@pytest.mark.case("t12")
@pytest.mark.parametrize("topology", HANDOFFS)
async def test_a_placeholder_that_slipped_through_stops_before_decode(deploy, topology):
    deployment = await deploy(topology)
    deployment.prefill.faults = [changed(prompt=[1, 900_001, 2])]

    reply = await deployment.post(chat("hello"))

    assert (reply.status, reply.error["code"]) == (500, "prompt_mismatch")
    assert deployment.decode.recorded == []


@pytest.mark.parametrize("stream", [False, True])
async def test_decode_that_prefills_itself_must_have_its_medias_placeholders(deploy, stream):
    deployment = await deploy("E/PD")
    deployment.decode.faults = [changed(prompt=[1, 2])]

    reply = await deployment.post(chat(image_part(RED), "hm", stream=stream))

    assert (reply.status, reply.error["code"]) == (500, "prompt_mismatch")


# -- what the client is told -----------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_the_response_tells_stage_times_and_the_bytes_that_went_to_decode(deploy, stream):
    deployment = await deploy()
    big = picture("x" * 30_000)

    reply = await deployment.post(chat(image_part(big), "hm", stream=stream))

    stages = [entry.partition(";dur=") for entry in reply.headers["Server-Timing"].split(", ")]
    assert [stage for stage, _, _ in stages] == ["encode", "prefill", "decode"]
    assert all(float(duration) >= 0 for _, _, duration in stages)
    sent = int(reply.headers["x-mmdisagg-decode-bytes"])
    assert sent == len(deployment.decode.recorded[0].raw) < 2000


async def test_one_log_line_per_request_without_content(deploy):
    deployment = await deploy()

    await deployment.post(
        chat(image_part(RED), "a secret question", stream=True), headers={"x-request-id": "r1"}
    )
    await eventually(lambda: len(deployment.log) == 1)

    (line,) = deployment.log
    assert (line["request_id"], line["status"], line["outcome"]) == ("r1", 200, "ok")
    assert (line["path"], line["stream"], line["media"]) == ("/v1/chat/completions", True, 1)
    assert line["stages_ms"].keys() == line["sent_bytes"].keys() == {"encode", "prefill", "decode"}
    assert "secret" not in str(line)
    assert "red" not in str(line)
