"""Decode's stream: held back until it has proven itself, then handed on batch by batch.

vLLM answers HTTP 200 before it knows whether the KV blocks can be loaded: a chunk that names the role
comes first, the error behind it. So the head is held until something was generated. Until then nothing
has reached the client, the prompt can be compared, and a failure can be tried again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import aiohttp
import msgspec

from .client import Clock
from .errors import EngineFailedError, StageError, UnreachableError
from .events import DONE, EventSplitter, is_data, is_error, payload, read_chunk
from .replies import stream_error

STAGE: Final = "decode"

Transform: TypeAlias = Callable[[bytes], bytes]
"""Turns one of the engine's events into the client's."""


class EventStream:
    """The events of an engine's response, in batches as they arrive."""

    def __init__(self, response: aiohttp.ClientResponse, clock: Clock, idle: float) -> None:
        self._content = response.content
        self._clock = clock
        self._idle = idle
        self._splitter = EventSplitter()

    async def batch(self) -> list[bytes] | None:
        """Wait for the next events; None at the end of the response."""
        while data := await self._content.readany():
            if events := self._splitter.feed(data):
                return events
        return None

    def relax(self) -> None:
        """Bound the next wait by the idle deadline."""
        self._clock.allow(self._idle)

    def pause(self) -> None:
        """Count no time against the engine until `relax`, but that of the request as a whole."""
        self._clock.allow(math.inf)

    async def finish(self) -> None:
        """Read what follows the last event, so that the connection can be used again."""
        self.relax()
        await self._content.read()


@dataclass(frozen=True)
class Head:
    """The beginning of a stream, up to the first thing that was generated.

    Attributes:
        events: everything read so far.
        prompt_token_ids: decode's prompt, when it said so.
    """

    events: list[bytes]
    prompt_token_ids: list[int] | None


async def read_head(stream: EventStream) -> Head:
    """Read until the stream has begun in earnest.

    Raises:
        EngineRefusedError: the stream begins with an error of the client.
        StageError: it begins with another error, with something unreadable, or ends at once.
    """
    events: list[bytes] = []
    prompt: list[int] | None = None
    while (batch := await stream.batch()) is not None:
        events += batch
        for event in batch:
            ids, begun = _read(event)
            prompt = ids if prompt is None else prompt
            if begun:
                return Head(events, prompt)
    raise UnreachableError(STAGE, "the stream ended before it began")


def _read(event: bytes) -> tuple[list[int] | None, bool]:
    if is_error(event):
        raise stream_error(STAGE, payload(event))
    if event == DONE or not is_data(event):
        return None, event == DONE
    try:
        chunk = read_chunk(event)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EngineFailedError(STAGE, f"the stream cannot be read: {error}") from None
    return chunk.prompt, not chunk.is_preamble


def broken(event: bytes) -> StageError:
    """Return the error for an error event in the middle of a stream, whose answer has begun."""
    error = stream_error(STAGE, payload(event))
    return error if isinstance(error, StageError) else EngineFailedError(STAGE, error.message)
