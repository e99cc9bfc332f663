"""Hostile bodies and broken engines: an OpenAI-style error, never wrong text, never a bare 500."""

from __future__ import annotations

import gzip
import json

import pytest
from aiohttp import web
from scripted_engines import chat, image_part, picture, says

from mmdisagg_workers.router.server import Front

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

    monkeypatch.setattr(Front, "_read_chat", broken)
    reply = await deployment.post(chat("hello"))
    assert reply.status == 500
    assert reply.error["code"] == "internal_error"
    assert (deployment.log[-1]["status"], deployment.log[-1]["outcome"]) == (500, "failed")


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
