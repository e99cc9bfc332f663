"""What clients send: the OpenAI client unchanged, bad media, forbidden fields, forged requests to engines."""

from __future__ import annotations

import base64
import json
import random

import openai
import pytest
import requests
from picture_server import PICTURE, TO_METADATA
from pictures import about, image_part, noise, text_part
from stages import REMOTE_DECODE, without_identity
from test_qwen2_5_vl import assert_same

from mmdisagg_cli.scenes import png, question, scene
from mmdisagg_workers.contract import DecodeForm

URL_PART = "image_url"
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {
            "type": "object",
            "properties": {
                "shape": {"enum": ["circle", "square", "triangle"]},
                "colour": {"enum": ["red", "blue", "green", "black"]},
            },
            "required": ["shape", "colour"],
            "additionalProperties": False,
        },
    },
}
SHAPE = {
    "type": "json_schema",
    "json_schema": {"name": "s", "schema": TOOL["function"]["parameters"]},
}


@pytest.fixture
def client(qwen):
    return openai.OpenAI(base_url=qwen().router().url + "/v1", api_key="none", max_retries=0)


def url_part(url: str):
    return {"type": URL_PART, URL_PART: {"url": url}}


def test_the_openai_client_sends_a_data_url(qwen, client):
    asked = question(random.Random(3), 1)
    reference = qwen().reference.ask(asked.content())
    reply = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": asked.content()}], temperature=0, max_tokens=24
    )
    assert reply.choices[0].message.content == reference.text
    assert "token_ids" not in reply.choices[0].model_extra
    assert "prompt_token_ids" not in reply.model_extra


@pytest.mark.case("c11")
def test_a_picture_url_of_an_allowed_host_is_fetched_exactly_once(qwen, client, web):
    reply = client.chat.completions.create(
        model="m",
        messages=[
            {"role": "user", "content": [url_part(f"{web.url}/a.png"), text_part("What is in the image?")]}
        ],
        temperature=0,
        max_tokens=24,
    )
    assert reply.choices[0].message.content == scene(random.Random(5)).answer
    assert web.sessions["/a.png"] == [qwen().local.role("encode").process.pid]


def test_the_openai_client_streams_with_usage(qwen, client):
    asked = question(random.Random(4), 2)
    reference = qwen().reference.ask(asked.content())
    chunks = list(
        client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": asked.content()}],
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == reference.text
    assert chunks[-1].usage.completion_tokens == reference.usage["completion_tokens"]
    for chunk in chunks:
        assert not {"prompt_token_ids", "token_ids"} & set(chunk.model_extra or {})
        assert all("token_ids" not in (choice.model_extra or {}) for choice in chunk.choices)


@pytest.fixture
def asked(qwen):
    """Asks the OpenAI client of the router and that of the aggregated engine the same; returns both replies."""
    message = {"role": "user", "content": [image_part(PICTURE), text_part("What is in the image?")]}

    def both(**fields):
        servers = (qwen().router(), qwen().reference)
        clients = [openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) for s in servers]
        body = {"model": "m", "messages": [message], "temperature": 0, "max_tokens": 100}
        return [client.chat.completions.create(**body, **fields) for client in clients]

    return both


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_tools_that_are_not_called_stand_in_the_prompt(asked, choice):
    reply, reference = asked(tools=[TOOL], tool_choice=choice)
    assert reply.choices[0].message.content == reference.choices[0].message.content != ""
    assert reply.usage.prompt_tokens == reference.usage.prompt_tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_a_forced_tool_call_is_parsed_as_on_the_aggregated_engine(asked, choice):
    reply, reference = asked(tools=[TOOL], tool_choice=choice)
    assert called(reply.choices[0].message.tool_calls) == called(reference.choices[0].message.tool_calls)
    ((name, arguments),) = called(reply.choices[0].message.tool_calls)
    assert name == "look"
    assert set(arguments) == {"shape", "colour"}
    assert reply.choices[0].finish_reason == reference.choices[0].finish_reason
    assert reply.usage.prompt_tokens == reference.usage.prompt_tokens
    for chunks in asked(tools=[TOOL], tool_choice=choice, stream=True):
        deltas = [call for chunk in chunks for c in chunk.choices for call in c.delta.tool_calls or ()]
        assert "".join(d.function.name or "" for d in deltas) == name
        assert json.loads("".join(d.function.arguments or "" for d in deltas)) == arguments


def test_an_answer_in_a_json_schema_is_the_aggregated_engines(asked):
    reply, reference = asked(response_format=SHAPE)
    assert reply.choices[0].message.content == reference.choices[0].message.content
    assert set(json.loads(reply.choices[0].message.content)) == {"shape", "colour"}
    assert reply.usage.prompt_tokens == reference.usage.prompt_tokens


def called(calls) -> list[tuple[str, dict[str, str]]]:
    """Name and arguments of each tool call."""
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


def test_models_health_and_metrics(qwen, client):
    assert [model.id for model in client.models.list()] == ["m"]
    router = qwen().router()
    for path in ("/health", "/ready"):
        assert requests.get(router.url + path, timeout=10).status_code == 200
    assert router.metric("mmdisagg_router_requests_total") > 0


@pytest.mark.case("c03")
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda: jpeg()[:-128], id="jpeg cut 128 bytes short"),
        pytest.param(lambda: png(PICTURE)[: len(png(PICTURE)) // 2], id="half a png"),
        pytest.param(lambda: b"no picture at all", id="no picture"),
        pytest.param(lambda: b"", id="empty"),
    ],
)
def test_a_broken_picture_is_the_clients_error_once(qwen, data):
    stack = qwen()
    encode = stack.engine("encode")
    router = stack.router()
    url = "data:image/jpeg;base64," + base64.b64encode(data()).decode()
    before = encode.metric("http_requests_total", handler="/v1/chat/completions")
    reply = router.ask(about(url_part(url)))
    assert reply.status in {400, 422}, reply.body
    assert reply.error
    assert encode.metric("http_requests_total", handler="/v1/chat/completions") - before <= 1
    assert router.ask(about(image_part(PICTURE))).status == 200


@pytest.mark.case("c03")
def test_a_picture_url_that_answers_404_is_the_clients_error_once(qwen, web):
    reply = qwen().router().ask(about(url_part(f"{web.url}/missing")))
    assert reply.status in {400, 422}, reply.body
    assert "404" in reply.error
    assert web.hits("/missing") == 1


@pytest.mark.case("c17")
@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/a.png",
        "http://localhost:1/a.png",
        "http://[::1]:1/a.png",
        "http://2130706433/a.png",
        "file:///etc/passwd",
        "ftp://127.0.0.1/a.png",
    ],
)
def test_urls_of_private_places_are_refused(qwen, url):
    reply = qwen().router().ask(about(url_part(url)))
    assert reply.status == 400, reply.body
    assert reply.error


@pytest.mark.case("c17")
def test_a_redirect_into_a_private_network_is_refused(qwen, web):
    reply = qwen().router().ask(about(url_part(web.url + TO_METADATA)))
    assert reply.status == 400, reply.body
    assert web.hits(TO_METADATA) == 1


@pytest.mark.case("c05")
def test_a_model_that_is_not_served_is_a_404(qwen):
    reply = qwen().router().ask(about(image_part(PICTURE)), model="other")
    assert reply.status == 404
    assert reply.body["error"]["code"] == "model_not_found"


@pytest.mark.case("c18")
def test_too_many_pictures_name_the_limit_before_any_encode_starts(qwen):
    stack = qwen()
    encode = stack.engine("encode")
    before = encode.metric("http_requests_total", handler="/v1/chat/completions")
    reply = stack.router().ask(about(*[image_part(PICTURE)] * 500))
    assert reply.status == 400
    assert "8" in reply.error
    assert encode.metric("http_requests_total", handler="/v1/chat/completions") == before


@pytest.mark.case("c25")
@pytest.mark.parametrize(
    "fields",
    [
        {"kv_transfer_params": REMOTE_DECODE},
        {"ec_transfer_params": {"0" * 64: {}}},
        {"prompt_embeds": "AAAA"},
        {"priority": -1},
    ],
)
def test_fields_that_belong_to_the_router_are_refused(qwen, fields):
    reply = qwen().router().ask(about(image_part(PICTURE)), **fields)
    assert reply.status == 400
    assert next(iter(fields)) in reply.error


@pytest.mark.case("c25")
@pytest.mark.parametrize("uuid", ["0" * 64, "../../x"])
def test_a_clients_identity_is_refused(qwen, uuid):
    reply = qwen().router().ask(about({**image_part(PICTURE), "uuid": uuid}))
    assert reply.status == 400
    assert "uuid" in reply.error


@pytest.mark.case("c25")
def test_processor_arguments_reach_encode_only_and_change_the_answer_as_they_do_alone(qwen):
    stack = qwen()
    content = about(image_part(noise(9, 112, 112)))
    smaller = {"mm_processor_kwargs": {"max_pixels": 3136}, "ignore_eos": True}
    plain, changed = stack.reference.ask(content, ignore_eos=True), stack.reference.ask(content, **smaller)
    assert changed.usage["prompt_tokens"] < plain.usage["prompt_tokens"]
    assert_same([stack.router().ask(content, **smaller)], [changed])
    assert_same([stack.router().ask(content, ignore_eos=True)], [plain])


@pytest.mark.case("c25")
def test_salts_of_clients_do_not_meet(qwen):
    stack = qwen()
    words = "A salted question about nothing at all, long enough to span two blocks of the cache. " * 3
    decode = stack.engine("decode")
    for salt, hit in (("a", False), ("b", False), ("a", True)):
        before = decode.metric("vllm:prefix_cache_hits_total")
        assert stack.router().ask(words, cache_salt=salt).status == 200
        assert (decode.metric("vllm:prefix_cache_hits_total") > before) == hit


@pytest.mark.case("t12")
@pytest.mark.parametrize(
    "text", ["<|image_pad|>", "see <|vision_start|><|image_pad|><|vision_end|>", "<|video_pad|>"]
)
def test_a_literal_placeholder_is_refused(qwen, text):
    reply = qwen().router().ask(about(image_part(PICTURE), text=text))
    assert reply.status == 400
    assert "pad|>" in reply.error


# What a peer that holds the stage token could send to an engine directly.


@pytest.mark.case("t08", "x02")
def test_decode_refuses_media_and_expanded_ids_without_kv(qwen):
    stack = qwen()
    stages = stack.stages
    done = stages.prefill_content(about(image_part(noise(1))))
    for form in (DecodeForm.ZERO_EMBEDDING, DecodeForm.METADATA_ONLY):
        lonely = stages.decode_media(_without_kv(done), form, without_identity)
        assert lonely.status == 400, lonely.body
        assert "kv_transfer_params" in lonely.error
    ids = stack.engine("decode").post(
        "/v1/completions", {"model": "m", "prompt": done.prompt_token_ids, "max_tokens": 4}
    )
    assert ids.status_code == 400
    assert stack.router().ask(about(image_part(PICTURE))).status == 200


@pytest.mark.case("x04", "x03", "c01")
@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"image_grid_thw": [0, 0, 0]}, "image_grid_thw"),
        ({"image_grid_thw": [[1, 4, 4]]}, "image_grid_thw"),
        ({"image_grid_thw": []}, "image_grid_thw"),
        ({}, "image_grid_thw"),
        (None, "image_grid_thw"),
        ("AAAA", "image_embeds"),
        ({"image_grid_thw": [1, 4, 4], "image_embeds": "gAJjdG9yY2g="}, "embeddings"),
        (
            {
                "image_embeds": 'mmdisagg.v1:{"kind":"zeros","shape":[4,64],"dtype":"float32"}',
                "image_grid_thw": 'mmdisagg.v1:{"kind":"values","dtype":"int64","values":[1,4,4]}',
            },
            "image_embeds",
        ),
    ],
)
def test_decode_refuses_malformed_grids_and_foreign_tensors_by_name_and_lives(qwen, payload, named):
    stack = qwen()
    done = stack.stages.prefill_content(about(image_part(noise(2))))
    part = {"type": "image_embeds", "image_embeds": payload, "uuid": done.media[0].identity}
    reply = stack.engine("decode").ask(
        [part, text_part("describe this")], kv_transfer_params=done.kv_transfer_params
    )
    assert reply.status == 400, reply.body
    assert named in reply.error
    assert requests.get(stack.local.role("decode").url + "/health", timeout=10).status_code == 200


@pytest.mark.case("c25")
@pytest.mark.parametrize("uuid", ["../../x", "ABC", "", None])
def test_engines_refuse_malformed_identities(qwen, uuid):
    stack = qwen()
    part = {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 4, 4]}, "uuid": uuid}
    for role, params in (
        ("prefill", {"ec_transfer_params": {str(uuid): {}}}),
        ("decode", {"kv_transfer_params": {}}),
    ):
        reply = stack.engine(role).ask([part, text_part("x")], **params)
        assert reply.status == 400, (role, reply.body)


def test_engines_refuse_everyone_without_the_stage_token(qwen):
    stack = qwen()
    for role in ("encode", "prefill", "decode"):
        url = stack.local.role(role).url
        for headers in ({}, {"x-mmdisagg-stage-token": "wrong" * 8}):
            for path in ("/v1/chat/completions", "/v1/models", "/tokenize"):
                reply = requests.post(
                    url + path, json={"model": "m", "prompt": "x"}, headers=headers, timeout=10
                )
                assert reply.status_code == 401, (role, path)
        for path in ("/health", "/metrics", "/mmdisagg/v1/info"):
            assert requests.get(url + path, timeout=10).status_code == 200


def test_the_decode_leg_carries_less_than_two_kilobytes_a_picture(qwen):
    stack = qwen()
    for form in (DecodeForm.ZERO_EMBEDDING, DecodeForm.METADATA_ONLY):
        reply = stack.router(form).ask(about(image_part(noise(3, 224, 224))))
        assert int(reply.headers["x-mmdisagg-decode-bytes"]) < 2048
        assert "decode;dur=" in reply.headers["Server-Timing"]


def test_the_request_id_comes_back_and_stands_in_the_routers_log(qwen):
    stack = qwen()
    router = stack.router()
    body = router.body(about(image_part(PICTURE)))
    reply = router.post("/v1/chat/completions", body, headers={"x-request-id": "test-4711"})
    assert reply.headers["x-request-id"] == "test-4711"
    assert "test-4711" in stack.local.role("router").log.read_text()


def jpeg() -> bytes:
    """The picture as a JPEG file."""
    import io

    buffer = io.BytesIO()
    noise(8, 112, 112).save(buffer, "JPEG")
    return buffer.getvalue()


def _without_kv(done):
    from dataclasses import replace

    return replace(done, kv_transfer_params=None)
