"""The front's other paths, its readiness, and the shape of its errors."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from scripted_engines import MODEL, chat, fails, image_part, picture

from mmdisagg_workers.contract import DecodeForm, Geometry, MediaLimits

RED = picture("red")


def assert_openai_error(reply, status, code=None):
    assert reply.status == status
    assert reply.headers["content-type"].startswith("application/json")
    assert reply.json.keys() == {"error"}
    assert reply.error.keys() == {"message", "type", "param", "code"}
    assert reply.error["message"]
    assert code is None or reply.error["code"] == code


async def test_the_model_is_listed(deploy):
    deployment = await deploy("PD")

    listed = (await deployment.get("/v1/models")).json
    one = (await deployment.get(f"/v1/models/{MODEL}")).json

    assert listed["object"] == "list"
    assert listed["data"] == [one]
    assert (one["id"], one["object"], one["max_model_len"]) == (MODEL, "model", 4096)
    assert_openai_error(await deployment.get("/v1/models/other"), 404, "model_not_found")


async def test_health_answers_whatever_the_engines_do(deploy):
    deployment = await deploy(ready=False)

    assert (await deployment.get("/health")).status == 200


@pytest.mark.parametrize(
    ("topology", "family", "contract"),
    [("E/P/D", "Qwen2.5-VL", "ZeroEmbedding"), ("EP/D", "LLaVA", "ExpandedPrompt")],
)
async def test_ready_once_all_engines_were_asked_and_agree(deploy, topology, family, contract):
    deployment = await deploy(topology, family=family, decode=2, ready=False)
    assert_openai_error(await deployment.get("/ready"), 503, "not_ready")

    await deployment.front.readiness.refresh()

    reply = await deployment.get("/ready")
    assert reply.status == 200
    assert (reply.json["topology"], reply.json["decode_contract"]) == (topology, contract)


async def test_requests_before_that_are_503_with_retry_after(deploy):
    deployment = await deploy(ready=False)

    reply = await deployment.post(chat("hi"))

    assert_openai_error(reply, 503, "not_ready")
    assert int(reply.headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"family": "Qwen2-VL"}, "family"),
        ({"revision": "r2"}, "revision"),
        ({"vllm_version": "0.33.0"}, "vllm_version"),
        ({"contract_version": 99}, "contract_version"),
        ({"geometry": Geometry(64, 2, {})}, "geometry"),
        ({"role": "encode"}, "role"),
    ],
)
async def test_engines_that_disagree_make_it_unready_with_the_reason(deploy, changes, named):
    deployment = await deploy(decode=2)
    deployment.engines["decode"][1].info = replace(deployment.decode.info, **changes)

    await deployment.front.readiness.refresh()

    reply = await deployment.get("/ready")
    assert_openai_error(reply, 503, "not_ready")
    assert named in reply.error["message"]
    assert (await deployment.post(chat("hi"))).status == 503


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"contract_version": 99}, "contract version 99"),
        ({"topology": "PD"}, "topology PD"),
        ({"family": "X"}, "X"),
    ],
)
async def test_engines_that_agree_on_what_the_router_cannot_serve(deploy, changes, named):
    deployment = await deploy()
    for group in deployment.engines.values():
        for engine in group:
            engine.info = replace(engine.info, **changes)

    await deployment.front.readiness.refresh()

    reply = await deployment.get("/ready")
    assert_openai_error(reply, 503)
    assert named in reply.error["message"]


@pytest.mark.case("t01")
@pytest.mark.parametrize(
    ("family", "form"), [("Qwen2.5-VL", DecodeForm.EXPANDED_PROMPT), ("LLaVA", DecodeForm.METADATA_ONLY)]
)
async def test_a_decode_form_that_the_family_cannot_use_is_never_served(deploy, family, form):
    deployment = await deploy(family=family, form=form)

    reply = await deployment.get("/ready")

    assert_openai_error(reply, 503)
    assert family in reply.error["message"]
    assert (await deployment.post(chat(image_part(RED), "hm"))).status == 503


async def test_an_engine_that_never_answered_is_named(deploy):
    deployment = await deploy(ready=False)
    await deployment.prefill.stop()

    await deployment.front.readiness.refresh()

    reply = await deployment.get("/ready")
    assert_openai_error(reply, 503)
    assert deployment.prefill.url in reply.error["message"]


async def test_not_ready_while_no_engine_of_a_role_answers_any_more(deploy):
    deployment = await deploy(decode=2)
    await deployment.engines["decode"][0].stop()
    await deployment.front.readiness.refresh()
    assert (await deployment.get("/ready")).status == 200

    await deployment.engines["decode"][1].stop()
    await deployment.front.readiness.refresh()

    reply = await deployment.get("/ready")
    assert_openai_error(reply, 503)
    assert "decode" in reply.error["message"]


async def test_the_watch_finds_engines_that_come_up_later(deploy):
    deployment = await deploy(ready=False)
    port = int(deployment.decode.url.rpartition(":")[2])
    await deployment.decode.stop()
    watch = asyncio.create_task(deployment.front.readiness.watch())
    try:
        await asyncio.sleep(0.05)
        assert (await deployment.get("/ready")).status == 503
        await deployment.decode.start(port)
        async with asyncio.timeout(3):
            while (await deployment.get("/ready")).status != 200:
                await asyncio.sleep(0.02)
    finally:
        watch.cancel()


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"model": 5}'])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_malformed_body_is_400(deploy, path, data):
    deployment = await deploy()

    assert_openai_error(await deployment.post(data, path), 400)


@pytest.mark.case("c25")
@pytest.mark.parametrize("topology", ["E/P/D", "E/PD", "EP/D", "PD"])
@pytest.mark.parametrize(
    "body",
    [
        chat("hi", kv_transfer_params={}),
        chat("hi", ec_transfer_params={}),
        chat("hi", prompt_embeds="A"),
        chat("hi", priority=-5),
        chat({**image_part(RED), "uuid": "../../x"}),
        chat({"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 4, 4]}}),
        chat({"type": "video_embeds", "video_embeds": {}}),
    ],
)
async def test_what_only_engines_may_set_is_400_in_every_topology(deploy, topology, body):
    deployment = await deploy(topology)

    assert_openai_error(await deployment.post(body), 400, "forbidden_field")
    assert all(not engine.recorded for group in deployment.engines.values() for engine in group)


@pytest.mark.case("c18")
async def test_500_pictures_are_400_before_any_encode(deploy):
    deployment = await deploy()

    reply = await deployment.post(chat(*[image_part(picture(f"p{i}")) for i in range(500)]))

    assert_openai_error(reply, 400, "too_many_media")
    assert deployment.encode.recorded == []


@pytest.mark.case("c05")
async def test_an_unknown_model_and_a_text_only_deployment(deploy):
    deployment = await deploy(limits=MediaLimits(images=0, videos=0))

    assert_openai_error(await deployment.post(chat("hi") | {"model": "other"}), 404, "model_not_found")
    assert_openai_error(await deployment.post(chat(image_part(RED))), 400, "unsupported_media")
    assert (await deployment.post(chat("hi"))).status == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_beyond_the_limits_is_413(deploy, chunked):
    deployment = await deploy(limits=MediaLimits(images=1, videos=0, bytes=1000))
    size = deployment.front.settings.limits.body_bytes + 1

    async def pieces():
        for _ in range(0, size, 65536):
            yield b" " * 65536

    data = pieces() if chunked else b" " * size
    async with deployment.http.post(deployment.url + "/v1/chat/completions", data=data) as response:
        body = json.loads(await response.read())

    assert response.status == 413
    assert body["error"]["code"] == "request_too_large"


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(deploy):
    deployment = await deploy(limits=MediaLimits(images=1, videos=0, bytes=1000))
    host, port = deployment.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n{")

    async with asyncio.timeout(2):
        assert b" 413 " in await reader.readline()
    writer.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/", 404),
        ("POST", "/ready", 405),
    ],
)
async def test_other_paths_and_methods_have_the_same_error_shape(deploy, method, path, status):
    deployment = await deploy("PD")

    async with deployment.http.request(method, deployment.url + path) as response:
        body = json.loads(await response.read())

    assert response.status == status
    assert body["error"]["message"]


async def test_the_stage_token_is_in_no_answer_and_no_log(deploy):
    deployment = await deploy()
    deployment.encode.faults = [fails(500, "x")]

    replies = [await deployment.post(chat(image_part(RED), "hm")), await deployment.get("/ready")]

    token = deployment.front.settings.token
    assert token not in str([reply.body for reply in replies])
    assert token not in str(deployment.log)
    assert token not in repr(deployment.front.settings)


# -- metrics ---------------------------------------------------------------------------------------


async def test_metrics_count_outcomes_stages_and_bytes(deploy):
    deployment = await deploy()
    await deployment.post(chat(image_part(RED), "hm"))
    await deployment.post(chat("hi", priority=1))
    deployment.encode.faults = [fails(400)]
    await deployment.post(chat(image_part(picture("blue")), "hm"))

    requests = "mmdisagg_router_requests_total"
    assert await deployment.metric(requests, path="/v1/chat/completions", outcome="ok") == 1
    assert await deployment.metric(requests, outcome="invalid") == 1
    assert await deployment.metric(requests, outcome="refused") == 1
    for stage in ("prefill", "decode"):
        assert await deployment.metric("mmdisagg_router_stage_seconds_count", stage=stage) == 1
        engine = deployment.engines[stage][0]
        sent = await deployment.metric("mmdisagg_router_stage_sent_bytes_total", stage=stage)
        assert sent == len(engine.recorded[0].raw)
    assert await deployment.metric("mmdisagg_router_requests_in_flight") == 0
