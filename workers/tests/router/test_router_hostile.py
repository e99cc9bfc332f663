"""Hostile bodies and broken engines: an OpenAI-style error, never wrong text, never a bare 500."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from scripted_engines import MODEL, chat, image_part, picture, says, text_part

from mmdisagg_workers.contract import TEXT_BYTES, MediaLimits
from mmdisagg_workers.router.body import read_chat
from mmdisagg_workers.router.errors import InvalidRequestError
from mmdisagg_workers.router.legs import generate_raw_leg
from mmdisagg_workers.router.media_cache import Scope, media_key
from mmdisagg_workers.router.validation import MAX_PARTS, ClientMedium

PAD = "\\u003c|image_pad|\\u003e"


def with_tool_call(arguments: str) -> dict:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return chat(image_part(picture("a"))) | {
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "user", "content": [image_part(picture("a"))]},
        ]
    }


@pytest.mark.case("t12")
@pytest.mark.parametrize("odd", ["NaN", "-Infinity", "1e999", '"\\ud800"', "9" * 400])
@pytest.mark.parametrize("topology", ["E/P/D", "PD"])
async def test_a_placeholder_inside_arguments_that_only_a_lax_parser_reads_is_found(deploy, topology, odd):
    deployment = await deploy(topology)
    reply = await deployment.post(with_tool_call(f'{{"z":{odd},"a":"{PAD}"}}'))
    assert reply.status == 400
    assert reply.error["code"] == "reserved_token"


async def test_a_compressed_body_is_refused_unread(deploy):
    deployment = await deploy("PD")
    body = gzip.compress(json.dumps(chat("hello")).encode())
    reply = await deployment.post(body, headers={"Content-Encoding": "gzip"})
    assert reply.status == 415
    assert reply.error["code"] == "unsupported_encoding"


async def test_numbers_without_a_product_are_judged_one_by_one(deploy):
    deployment = await deploy("PD")
    body = chat(image_part(picture("a"))) | {
        "mm_processor_kwargs": {"size": {"height": 10**400, "width": 1.5}}
    }
    reply = await deployment.post(body)
    assert reply.status == 400
    assert "media.limits.pixels" in reply.error["message"]


async def test_an_unforeseen_failure_is_an_openai_error_and_its_own_outcome(deploy, monkeypatch):
    deployment = await deploy("PD")

    def broken(*_: object) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr("mmdisagg_workers.router.server.checked", broken)
    reply = await deployment.post(chat("hello"))
    assert reply.status == 500
    assert reply.error["code"] == "internal_error"
    assert (deployment.log[-1]["status"], deployment.log[-1]["outcome"]) == (500, "internal_error")


@pytest.mark.parametrize("body", [b"{}", b'{"error":{"message":"x"}}', b'{"choices":[]}'])
async def test_a_200_that_is_no_answer_is_the_engines_failure(deploy, body):
    deployment = await deploy("PD")
    deployment.decode.faults.append(says(body))
    reply = await deployment.post(chat("hello"))
    assert reply.status == 502
    assert reply.error["code"] == "engine_failed"


async def test_a_redirecting_engine_gets_no_other_host_the_stage_token(deploy):
    deployment = await deploy("PD")

    def redirects(*_: object) -> web.Response:
        return web.Response(status=307, headers={"Location": deployment.url + "/health"})

    deployment.decode.faults += [redirects, redirects]
    reply = await deployment.post(chat("hello"))
    assert reply.status == 502


def sends(*events: bytes, then: str = "end") -> Callable[..., Any]:
    """The engine streams these events as they are; then it ends, breaks off (`abort`) or says no more."""

    async def fault(engine: Any, request: web.Request, body: dict) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event + b"\n\n")
        if then == "abort":
            assert request.transport is not None
            request.transport.abort()
        elif then == "stall":
            await asyncio.sleep(3600)
        return response

    return fault


def data(chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode()


DONE = b"data: [DONE]"


async def test_the_last_of_several_encodings_counts_too(deploy):
    deployment = await deploy("PD")
    body = gzip.compress(json.dumps(chat("hello")).encode())
    headers = [("Content-Encoding", "identity"), ("Content-Encoding", "gzip")]
    url = deployment.url + "/v1/chat/completions"
    async with deployment.http.post(url, data=body, headers=headers) as response:
        assert response.status == 415


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a"}] * (MAX_PARTS + 1),
        [{"role": "user", "content": [text_part("a")] * MAX_PARTS}],
    ],
)
async def test_more_messages_and_parts_than_anybody_needs_are_refused(deploy, messages):
    deployment = await deploy("PD")
    reply = await deployment.post({"model": MODEL, "messages": messages})
    assert reply.status == 400
    assert reply.error["code"] == "too_many_parts"
    assert str(MAX_PARTS) in reply.error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_text_may_not_use_the_room_of_media(deploy, path):
    deployment = await deploy("PD", limits=MediaLimits(images=8, videos=0, bytes=1_000_000))
    text = "a" * TEXT_BYTES
    reply = await deployment.post(chat(text) if "chat" in path else {"model": MODEL, "prompt": text}, path)
    assert reply.status == 413
    assert str(TEXT_BYTES) in reply.error["message"]
    assert deployment.decode.recorded == []


async def test_inline_media_may_use_their_room(deploy):
    limit = TEXT_BYTES * 3
    deployment = await deploy("PD", limits=MediaLimits(images=1, videos=0, bytes=limit))
    url = f"data:image/png;base64,{'A' * TEXT_BYTES},red.1x4x4"
    assert (await deployment.post(chat(image_part(url)))).status == 200


@pytest.mark.parametrize("field", ["tools", "mm_processor_kwargs"])
def test_fields_nested_deeper_than_they_can_be_written_are_the_clients_fault(field):
    deep: dict = {}
    for _ in range(5000):
        deep = {"a": deep}
    body = read_chat(json.dumps(chat("hello")).encode())
    setattr(body, field, deep)
    build = {
        "tools": lambda: generate_raw_leg(body, []),
        "mm_processor_kwargs": lambda: media_key(ClientMedium("image", picture("a")), body, Scope("r1")),
    }
    with pytest.raises(InvalidRequestError, match="too deep"):
        build[field]()


async def test_an_unforeseen_failure_of_other_paths_has_the_same_shape(deploy, monkeypatch):
    deployment = await deploy("PD")
    monkeypatch.setattr(type(deployment.front.metrics), "text", lambda _: 1 / 0)
    reply = await deployment.get("/metrics")
    assert (reply.status, reply.error["code"]) == (500, "internal_error")


async def test_an_unforeseen_failure_within_a_stream_ends_it_with_an_error_event(deploy, monkeypatch):
    deployment = await deploy("PD")

    def broken(*_: object) -> bytes:
        raise KeyError("unforeseen")

    monkeypatch.setattr("mmdisagg_workers.router.pipeline.without_transfer_params", broken)
    reply = await deployment.post(chat("hello", stream=True))
    assert json.loads(reply.events[-1])["error"]["code"] == "internal_error"
    assert "[DONE]" not in reply.events
    assert deployment.log[-1]["outcome"] == "internal_error"


@pytest.mark.parametrize("topology", ["E/P/D", "PD"])
@pytest.mark.parametrize("stream", [False, True])
async def test_text_completions_need_choices_too(deploy, topology, stream):
    deployment = await deploy(topology)
    deployment.decode.faults += [says(b'{"object":"text_completion"}')] * 2
    body = {"model": MODEL, "prompt": "hello", "stream": stream}
    reply = await deployment.post(body, "/v1/completions")
    assert reply.status == 502
    assert reply.error["code"] in ("engine_failed", "engine_unreachable")


async def test_an_answer_with_bytes_that_are_no_text_is_the_engines_failure(deploy):
    deployment = await deploy("PD")
    deployment.decode.faults = [says(b'{"choices":[{"index":0}],"x":"\xff"}')]
    reply = await deployment.post(chat("hello"))
    assert (reply.status, reply.error["code"]) == (502, "engine_failed")


@pytest.mark.parametrize(
    "choice", [{"index": 0}, {"index": 0, "text": None}, {"index": 0, "text": 5}, {"index": 0, "text": ["a"]}]
)
async def test_a_completion_without_text_is_no_answer_to_a_chat(deploy, choice):
    deployment = await deploy("E/P/D", family="LLaVA")

    def answer(engine: Any, request: web.Request, body: dict) -> web.Response:
        return web.json_response({"choices": [{**choice, "prompt_token_ids": body["prompt"]}]})

    deployment.decode.faults = [answer, answer]
    reply = await deployment.post(chat(image_part(picture("red"))))
    assert (reply.status, reply.error["code"]) == (502, "engine_failed")


@pytest.mark.parametrize(
    "event",
    [
        b"data: {nonsense",
        b"data: 5",
        b'data: {"choices":5}',
        b'data: {"choices":{"a":1}}',
        b'data: {"choices":[5]}',
        b'data: {"choices":[{"index":0}]}',
        b'data: {"choices":[{"index":0,"text":7}]}',
        b"data: " + b"[" * 5000,
    ],
)
async def test_a_chunk_that_is_none_ends_a_converted_stream_with_an_error_event(deploy, event):
    deployment = await deploy("E/P/D", family="LLaVA")

    async def stream(engine: Any, request: web.Request, body: dict) -> web.StreamResponse:
        first = {"choices": [{"index": 0, "text": "I", "prompt_token_ids": body["prompt"]}]}
        return await sends(data(first), event, DONE)(engine, request, body)

    deployment.decode.faults = [stream]
    reply = await deployment.post(chat(image_part(picture("red")), stream=True))
    assert reply.status == 200
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_failed"
    assert "[DONE]" not in reply.events
    assert reply.streamed in ("", "I")


@pytest.mark.parametrize("then", ["abort", "stall"])
@pytest.mark.parametrize("deadlines", [{}, {"request": 0.4}])
async def test_nothing_follows_done(deploy, then, deadlines):
    deployment = await deploy("PD", deadlines=deadlines)
    chunk = {"choices": [{"index": 0, "delta": {"content": "hi"}}]}
    deployment.decode.faults = [sends(data(chunk), DONE, then=then)]
    async with asyncio.timeout(3):
        reply = await deployment.post(chat("hello", stream=True))
    assert reply.events[-1] == "[DONE]"
    assert reply.streamed == "hi"
    assert deployment.log[-1]["outcome"] == "ok"


async def test_streams_never_show_what_engines_tell_each_other(deploy):
    deployment = await deploy("PD")
    transfer = {"kv_transfer_params": {"remote_host": "10.0.0.9"}, "ec_transfer_params": {"a": 1}}
    choice = {"index": 0, "delta": {"content": "hi"}, "token_ids": [1], **transfer}
    spaced = (
        b'data: {"choices":[{"index":0,"delta":{"content":"!"},"token_ids" : [1]}],"prompt_token_ids" :[2]}'
    )
    deployment.decode.faults = [sends(data({"choices": [choice], **transfer}), spaced, DONE)]
    reply = await deployment.post(chat("hello", stream=True))
    assert reply.streamed == "hi!"
    assert b"transfer_params" not in reply.body
    assert b"token_ids" not in reply.body


async def test_full_answers_never_show_what_engines_tell_each_other(deploy):
    deployment = await deploy("PD")
    choice = {"index": 0, "message": {"content": "hi"}, "kv_transfer_params": {"remote_host": "10.0.0.9"}}
    deployment.decode.faults = [says(json.dumps({"choices": [choice], "ec_transfer_params": {}}).encode())]
    reply = await deployment.post(chat("hello"))
    assert reply.content == "hi"
    assert b"transfer_params" not in reply.body


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"id":"x","error":{"message":"lost","code":500}}',
        b'data: { "error": {"message":"lost"}}',
        b'data: {"object":"error","choices":[],"error":"lost"}',
    ],
)
async def test_an_error_event_is_one_wherever_its_key_stands(deploy, event):
    deployment = await deploy("PD")
    chunk = {"choices": [{"index": 0, "delta": {"content": "error"}}]}
    deployment.decode.faults = [sends(data(chunk), event, DONE)]
    reply = await deployment.post(chat("hello", stream=True))
    assert reply.streamed == "error"
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_failed"
    assert "[DONE]" not in reply.events
