"""Events: cut apart however they arrive, and cleaned of token ids without touching anything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdisagg_workers.router.events import (
    DONE,
    EventSplitter,
    is_error,
    read_chunk,
    without_token_ids,
)


def event(chunk: dict) -> bytes:
    return b"data: " + json.dumps(chunk, separators=(",", ":"), ensure_ascii=False).encode()


def chunk(text: str, **fields) -> dict:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None, **fields}
    return {"id": "x", "object": "chat.completion.chunk", "choices": [choice], "model": "m"}


texts = st.text() | st.sampled_from(
    [
        '"token_ids":[1,2]',
        ',"token_ids":[1]',
        '\\","token_ids":[1],"',
        "token_ids",
        '{"prompt_token_ids":null}',
    ]
)


@given(st.lists(texts, max_size=6), st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_events_are_the_same_however_the_bytes_are_cut(contents, steps):
    events = [event(chunk(text)) for text in contents]
    data = b"".join(one + b"\n\n" for one in events)
    splitter, found, start = EventSplitter(), [], 0

    for step in steps * (len(data) + 1):
        if start >= len(data):
            break
        found += splitter.feed(data[start : start + step])
        start += step

    assert found == events


@given(texts, st.lists(st.integers(0, 99), max_size=5) | st.none(), st.lists(st.integers(0, 9)) | st.none())
def test_token_ids_are_removed_and_nothing_else(text, ids, prompt):
    given_event = event({**chunk(text, token_ids=ids, stop_reason=None), "prompt_token_ids": prompt})

    cleaned = json.loads(without_token_ids(given_event).removeprefix(b"data: "))

    assert cleaned == chunk(text, stop_reason=None)


def test_token_ids_of_a_completion_are_removed():
    choice = {"index": 0, "text": "x", "prompt_token_ids": [1, 2], "token_ids": [3]}

    assert without_token_ids(event({"choices": [choice]})) == event({"choices": [{"index": 0, "text": "x"}]})


def test_token_ids_that_come_first_or_with_spaces_are_removed_too():
    spaced = b'data: {"prompt_token_ids": [1, 2], "choices": [{"token_ids": [3], "index": 0}]}'

    assert json.loads(without_token_ids(spaced).removeprefix(b"data: ")) == {"choices": [{"index": 0}]}


@pytest.mark.parametrize("other", [DONE, b": keep-alive", b'data: {"error":{"message":"x"}}'])
def test_other_events_pass_unchanged(other):
    assert without_token_ids(other) == other


def test_errors_are_told_from_chunks_that_speak_of_errors():
    assert is_error(b'data: {"error": {"message": "x"}}')
    assert not is_error(event(chunk('{"error": 1}')))


@pytest.mark.parametrize(
    ("fields", "preamble"),
    [
        ({"delta": {"role": "assistant", "content": ""}}, True),
        ({"delta": {"role": "assistant", "content": "a"}}, False),
        ({"delta": {}, "token_ids": [5]}, False),
        ({"delta": {"content": ""}, "finish_reason": "stop"}, False),
        ({"delta": {"tool_calls": [{"index": 0}]}}, False),
        ({"delta": {"reasoning": "hm"}}, False),
        ({"text": "a"}, False),
    ],
)
def test_a_stream_has_begun_when_something_was_generated(fields, preamble):
    assert read_chunk(event({"choices": [{"index": 0, **fields}]})).is_preamble is preamble
