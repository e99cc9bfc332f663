"""The OpenAI Python client, unchanged, against the router."""

from __future__ import annotations

import openai
import pytest
from scripted_engines import MODEL, changed, fails, image_part, picture, text_part

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
MESSAGES = [{"role": "user", "content": [text_part("what is it?"), image_part(picture("red"))]}]


@pytest.fixture
async def served(deploy):
    deployment = await deploy()
    async with openai.AsyncOpenAI(base_url=deployment.url + "/v1", api_key="x", max_retries=0) as client:
        yield deployment, client.chat.completions


async def test_an_answer_with_tools_and_a_format(served):
    deployment, chats = served

    answer = await chats.create(
        model=MODEL, messages=MESSAGES, tools=TOOLS, response_format={"type": "json_object"}, max_tokens=9
    )

    assert answer.choices[0].message.content == "I see red"
    assert answer.usage.completion_tokens == 4
    assert deployment.decode.bodies[0]["response_format"] == {"type": "json_object"}


async def test_a_stream_with_usage(served):
    _, chats = served

    stream = await chats.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == "I see red"
    assert chunks[-1].usage.completion_tokens == 3


async def test_an_answer_may_be_sent_back_as_history(served):
    deployment, chats = served
    answer = await chats.create(model=MODEL, messages=MESSAGES)
    history = [*MESSAGES, answer.choices[0].message.model_dump(), {"role": "user", "content": "and now?"}]

    again = await chats.create(model=MODEL, messages=history)

    assert again.choices[0].message.content == "I see red"
    assert deployment.decode.bodies[1]["messages"][1]["content"] == "I see red"


async def test_errors_are_the_clients_own_types(served):
    deployment, chats = served

    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await chats.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="may not be set by a client"):
        await chats.create(model=MODEL, messages=MESSAGES, extra_body={"kv_transfer_params": {}})
    deployment.encode.faults = [fails(500), fails(500)]
    with pytest.raises(openai.InternalServerError):
        await chats.create(model=MODEL, messages=MESSAGES)


@pytest.mark.case("c24")
async def test_a_broken_stream_raises(served):
    deployment, chats = served
    deployment.decode.faults = [changed(error_after=2)]

    stream = await chats.create(model=MODEL, messages=MESSAGES, stream=True)

    with pytest.raises(openai.APIError, match="decode stage"):
        _ = [chunk async for chunk in stream]
