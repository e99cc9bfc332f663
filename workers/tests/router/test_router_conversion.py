"""A completion's answer in the shape of a chat's."""

from __future__ import annotations

import json

from mmdisagg_workers.router.conversion import ChatStream, chat_answer
from mmdisagg_workers.router.events import DONE

USAGE = {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}


def completion(choice: dict, **fields) -> dict:
    return {
        "id": "cmpl-7",
        "object": "text_completion",
        "created": 9,
        "model": "m",
        "choices": [choice],
        **fields,
    }


def test_an_answer():
    choice = {"index": 0, "text": "a cat", "logprobs": None, "finish_reason": "length", "stop_reason": None}

    assert chat_answer(completion(choice, usage=USAGE, system_fingerprint="f")) == {
        "id": "chatcmpl-7",
        "object": "chat.completion",
        "created": 9,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "a cat"},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": USAGE,
        "system_fingerprint": "f",
    }


def test_token_ids_move_to_where_a_chat_has_them():
    answer = chat_answer(completion({"index": 0, "text": "a", "prompt_token_ids": [1], "token_ids": [2]}))

    assert answer["prompt_token_ids"] == [1]
    assert answer["choices"][0]["token_ids"] == [2]


def converted(*chunks: dict) -> list[dict]:
    stream = ChatStream()
    events = b"\n\n".join(stream(b"data: " + json.dumps(chunk).encode()) for chunk in chunks)
    return [json.loads(event.removeprefix(b"data: ")) for event in events.split(b"\n\n")]


def test_a_stream_begins_with_the_role_and_goes_on_with_the_text():
    chunks = converted(
        completion({"index": 0, "text": "a", "prompt_token_ids": [1], "token_ids": [2]}),
        completion({"index": 0, "text": " cat", "finish_reason": "stop"}),
        completion({}, usage=USAGE) | {"choices": []},
    )

    assert [chunk["object"] for chunk in chunks] == ["chat.completion.chunk"] * 4
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-7"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[0]["prompt_token_ids"] == [1]
    assert chunks[1]["choices"][0] | {"delta": {"content": "a"}, "token_ids": [2]} == chunks[1]["choices"][0]
    assert chunks[2]["choices"][0]["delta"] == {"content": " cat"}
    assert chunks[2]["choices"][0]["finish_reason"] == "stop"
    assert (chunks[3]["choices"], chunks[3]["usage"]) == ([], USAGE)


def test_what_is_no_chunk_passes():
    stream = ChatStream()

    for event in (DONE, b": keep-alive", b'data: {"error":{"message":"x"}}'):
        assert stream(event) == event
