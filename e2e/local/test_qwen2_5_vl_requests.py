"""What clients send: the OpenAI client unchanged, bad media, forbidden fields, forged requests to engines."""

from __future__ import annotations

import base64
import random
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import pytest
import requests
from pictures import about, image_part, noise, text_part
from stack import ALLOWED_HOST
from stages import REMOTE_DECODE, without_identity

from mmdisagg_cli.scenes import png, question, scene
from mmdisagg_workers.contract import DecodeForm

PICTURE = scene(random.Random(5)).picture
URL_PART = "image_url"


@pytest.fixture(scope="module")
def web():
    """A web server on an allowed host that counts its hits."""
    hits: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            hits[self.path] += 1
            if self.path == "/redirect-to-metadata":
                self.send_response(302)
                self.send_header("Location", "http://169.254.169.254/latest/meta-data")
                self.end_headers()
                return
            found = self.path.endswith(".png")
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(png(PICTURE) if found else b"not here")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer((ALLOWED_HOST, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{ALLOWED_HOST}:{server.server_port}", hits
    server.shutdown()


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
def test_a_picture_url_of_an_allowed_host_is_fetched_exactly_once(client, web):
    base, hits = web
    reply = client.chat.completions.create(
        model="m",
        messages=[
            {"role": "user", "content": [url_part(f"{base}/a.png"), text_part("What is in the image?")]}
        ],
        temperature=0,
        max_tokens=24,
    )
    assert reply.choices[0].message.content == scene(random.Random(5)).answer
    assert hits["/a.png"] == 1


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


def test_tools_and_response_format(qwen, client):
    content = [image_part(PICTURE), text_part("What is in the image?")]
    tool = {
        "type": "function",
        "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}},
    }
    request = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 16}
    tools = {"tools": [tool], "tool_choice": "none"}
    schema = {
        "type": "object",
        "properties": {"shape": {"enum": ["circle", "square"]}},
        "required": ["shape"],
    }
    shaped = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
    for fields in (tools, shaped):
        body = {"model": "m", **request, **fields}
        reference = requests.post(qwen().reference.url + "/v1/chat/completions", json=body, timeout=60).json()
        reply = client.chat.completions.create(**body)
        assert reply.choices[0].message.content == reference["choices"][0]["message"]["content"]
        assert reply.usage.prompt_tokens == reference["usage"]["prompt_tokens"]


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
    base, hits = web
    reply = qwen().router().ask(about(url_part(f"{base}/missing")))
    assert reply.status in {400, 422}, reply.body
    assert "404" in reply.error
    assert hits["/missing"] == 1


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
    base, hits = web
    reply = qwen().router().ask(about(url_part(f"{base}/redirect-to-metadata")))
    assert reply.status == 400, reply.body
    assert hits["/redirect-to-metadata"] == 1


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
    arguments = {"mm_processor_kwargs": {"max_pixels": 3136}, "ignore_eos": True}
    plain, changed = stack.reference.ask(content, ignore_eos=True), stack.router().ask(content, **arguments)
    assert changed.status == 200, changed.body
    assert changed.usage["prompt_tokens"] < plain.usage["prompt_tokens"]
    assert stack.router().ask(content, ignore_eos=True).token_ids == plain.token_ids


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
    "payload",
    [
        {"image_grid_thw": [0, 0, 0]},
        {"image_grid_thw": [[1, 4, 4]]},
        {"image_grid_thw": []},
        {},
        None,
        "AAAA",
        {"image_grid_thw": [1, 4, 4], "image_embeds": "gAJjdG9yY2g="},
        {
            "image_embeds": 'mmdisagg.v1:{"kind":"zeros","shape":[4,64],"dtype":"float32"}',
            "image_grid_thw": 'mmdisagg.v1:{"kind":"values","dtype":"int64","values":[1,4,4]}',
        },
    ],
)
def test_decode_refuses_malformed_grids_and_foreign_tensors_and_lives(qwen, payload):
    stack = qwen()
    done = stack.stages.prefill_content(about(image_part(noise(2))))
    part = {"type": "image_embeds", "image_embeds": payload, "uuid": done.media[0].identity}
    reply = stack.engine("decode").ask(
        [part, text_part("describe this")], kv_transfer_params=done.kv_transfer_params
    )
    assert reply.status == 400, reply.body
    assert reply.error
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
