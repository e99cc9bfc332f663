"""Server-sent events as vLLM writes them: cut apart, read where needed, and cleaned of token ids.

An event is the bytes before a blank line. Relaying works on bytes; only events that decide something
(the head of a stream, errors, conversions) are parsed.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

DONE: Final = b"data: [DONE]"
END: Final = b"\n\n"
_DATA: Final = b"data: "
_ERROR: Final = b'data: {"error"'
# A quote inside a JSON string is always escaped, so after a bare comma this can only be a key.
_TOKEN_IDS: Final = re.compile(rb',"(?:prompt_)?token_ids":(?:\[[0-9, ]*\]|null)')
_TOKEN_KEY: Final = b'token_ids":'


class _Delta(Struct):
    content: str | None = None
    tool_calls: list[Any] = []
    reasoning: str | None = None


class _ChunkChoice(Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Chunk(Struct):
    """The parts of a chunk that tell whether the stream has really begun."""

    choices: list[_ChunkChoice] = []
    prompt_token_ids: list[int] | None = None

    @property
    def prompt(self) -> list[int] | None:
        """The prompt token ids, wherever this API puts them, or None."""
        if self.prompt_token_ids is not None or not self.choices:
            return self.prompt_token_ids
        return self.choices[0].prompt_token_ids

    @property
    def is_preamble(self) -> bool:
        """Whether the chunk only names the role: vLLM sends it before it looks for an error."""
        return bool(self.choices) and all(_says_nothing(choice) for choice in self.choices)


_chunk = msgspec.json.Decoder(Chunk)


class EventSplitter:
    """Cuts a byte stream into events, however it was cut on its way."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that `data` completes, without their blank lines."""
        if self._rest:
            data = self._rest + data
        *events, self._rest = data.split(END)
        return events


def is_error(event: bytes) -> bool:
    """Whether an event tells of an error."""
    return event.startswith(_ERROR)


def is_data(event: bytes) -> bool:
    """Whether an event carries data (a comment keeps a connection alive and carries none)."""
    return event.startswith(_DATA)


def payload(event: bytes) -> bytes:
    """Return the data of an event."""
    return event[len(_DATA) :]


def read_chunk(event: bytes) -> Chunk:
    """Read an event's chunk.

    Raises:
        msgspec.DecodeError: it carries none.
    """
    return _chunk.decode(payload(event))


def event_of(value: object) -> bytes:
    """Return the event that carries `value` as JSON."""
    return _DATA + msgspec.json.encode(value)


def without_token_ids(event: bytes) -> bytes:
    """Return an event without the token ids that the router asked for."""
    if _TOKEN_KEY not in event:
        return event
    event = _TOKEN_IDS.sub(b"", event)
    return event if _TOKEN_KEY not in event else _parsed_without_token_ids(event)


def drop_token_ids(answer: dict[str, Any]) -> None:
    """Remove token ids from a parsed answer or chunk, in place."""
    answer.pop("prompt_token_ids", None)
    for choice in answer.get("choices") or ():
        if isinstance(choice, dict):
            choice.pop("prompt_token_ids", None)
            choice.pop("token_ids", None)


def _parsed_without_token_ids(event: bytes) -> bytes:
    try:
        answer = msgspec.json.decode(payload(event))
    except msgspec.DecodeError:
        return event
    if isinstance(answer, dict):
        drop_token_ids(answer)
    return event_of(answer)


def _says_nothing(choice: _ChunkChoice) -> bool:
    delta = choice.delta
    if delta is None or choice.token_ids or choice.finish_reason:
        return False
    return not (delta.content or delta.tool_calls or delta.reasoning)
