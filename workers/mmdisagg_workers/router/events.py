"""Server-sent events as vLLM writes them: cut apart, read where needed, and cleaned of token ids.

An event is the bytes before a blank line. Relaying works on bytes; only events that decide something
(the head of a stream, errors, conversions) are parsed.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from .errors import EngineFailedError

DONE: Final = b"data: [DONE]"
END: Final = b"\n\n"
_DATA: Final = b"data: "
_ERROR: Final = b'data: {"error"'
_ERROR_KEY: Final = b'"error"'
_TRANSFER_KEY: Final = b"transfer_params"
_TRANSFER_FIELDS: Final = ("kv_transfer_params", "ec_transfer_params")
# A quote inside a JSON string is always escaped, so after a bare comma this can only be a key.
_TOKEN_IDS: Final = re.compile(rb',"(?:prompt_)?token_ids":(?:\[[0-9, ]*\]|null)')
_TOKEN_KEY: Final = b"token_ids"


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
    """Whether an event tells of an error, wherever among its top-level fields."""
    if event.startswith(_ERROR):
        return True
    if _ERROR_KEY not in event or not is_data(event):
        return False
    try:
        answer = msgspec.json.decode(payload(event))
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(answer, dict) and answer.get("error") is not None


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


def read_object(event: bytes) -> dict[str, Any]:
    """Read an event's JSON object.

    Raises:
        EngineFailedError: it carries none.
    """
    try:
        answer = msgspec.json.decode(payload(event))
    except (msgspec.DecodeError, RecursionError) as error:
        raise EngineFailedError("decode", f"the stream cannot be read: {error}") from None
    if not isinstance(answer, dict):
        raise EngineFailedError("decode", "the stream cannot be read: an event carries no object")
    return answer


def event_of(value: object) -> bytes:
    """Return the event that carries `value` as JSON."""
    return _DATA + msgspec.json.encode(value)


def without_token_ids(event: bytes) -> bytes:
    """Return an event without the token ids that the router asked for.

    Raises:
        EngineFailedError: it may carry some, and cannot be read.
    """
    if _TOKEN_KEY not in event or not is_data(event):
        return event
    event = _TOKEN_IDS.sub(b"", event)
    if _TOKEN_KEY not in event:
        return event
    answer = read_object(event)
    drop_token_ids(answer)
    return event_of(answer)


def without_transfer_params(event: bytes) -> bytes:
    """Return an event without the engines' addresses of KV blocks and embeddings.

    Raises:
        EngineFailedError: it may carry some, and cannot be read.
    """
    if _TRANSFER_KEY not in event or not is_data(event):
        return event
    answer = read_object(event)
    drop_transfer_params(answer)
    return event_of(answer)


def drop_token_ids(answer: dict[str, Any]) -> None:
    """Remove token ids from a parsed answer or chunk, in place."""
    _drop(answer, ("prompt_token_ids", "token_ids"))


def drop_transfer_params(answer: dict[str, Any]) -> None:
    """Remove the parameters of handoffs from a parsed answer or chunk, in place."""
    _drop(answer, _TRANSFER_FIELDS)


def _drop(answer: dict[str, Any], names: tuple[str, ...]) -> None:
    choices = answer.get("choices")
    for holder in (answer, *(choices if isinstance(choices, list) else ())):
        if isinstance(holder, dict):
            for name in names:
                holder.pop(name, None)


def _says_nothing(choice: _ChunkChoice) -> bool:
    delta = choice.delta
    if delta is None or choice.token_ids or choice.finish_reason:
        return False
    return not (delta.content or delta.tool_calls or delta.reasoning)
