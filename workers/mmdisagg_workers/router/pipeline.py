"""A request's way through the stages: what is sent when, and what is tried again.

    encode      every distinct medium, side by side; a broken connection, a 5xx, a report that lacks a fact:
                once more, elsewhere
    prefill     a broken connection: once more, elsewhere; a 5xx with embeddings: encode once more
    decode      a failure before the first token: prefill and decode once more (KV parameters serve once)

An engine's 4xx ends the request at once. So does a prompt that differs between the stages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from mmdisagg_workers.contract import Role, Topology

from . import legs
from .body import Body, ChatBody, CompletionBody, known
from .client import EngineClient
from .conversion import ChatStream, chat_answer
from .decode_stream import EventStream, Head, Transform, read_head
from .dispatch import Dispatcher, Tried
from .encode_stage import EncodeStage
from .engines import EngineSet
from .errors import EngineFailedError, StageError, UnreachableError
from .events import drop_token_ids, drop_transfer_params, without_token_ids, without_transfer_params
from .legs import EncodedMedia, Leg, Model
from .replies import check_placeholders, check_same_prompt, prefilled_media, read_answer
from .settings import Deadlines
from .trace import Trace
from .validation import ClientMedium


@dataclass(frozen=True)
class Job:
    """What one request asks for.

    Attributes:
        body: the client's body.
        media: its pictures and videos, in order.
        engines: the set that serves it, from its first leg to its last.
    """

    body: Body
    media: Sequence[ClientMedium]
    engines: EngineSet

    @property
    def model(self) -> Model:
        """The model as the engines agree on it."""
        return self.engines.model

    @property
    def topology(self) -> Topology:
        """The topology of the engines."""
        return self.engines.topology


@dataclass(frozen=True)
class FullAnswer:
    """An answer that came in one piece, as the client sees it."""

    body: dict[str, Any]


@dataclass(frozen=True)
class StreamAnswer:
    """An answer that has begun to come.

    Attributes:
        head: events that were held back.
        rest: the events that follow.
        transform: turns each event into the client's.
    """

    head: list[bytes]
    rest: EventStream
    transform: Transform


Answer: TypeAlias = FullAnswer | StreamAnswer


@dataclass(frozen=True)
class _Prefilled:
    """What prefill leaves for decode; `kv` and `prompt` are None where decode prefills itself."""

    encoded: EncodedMedia
    kv: dict[str, Any] | None = None
    prompt: list[int] | None = None


@dataclass
class _Run:
    """One request on its way, with one second chance of each kind."""

    job: Job
    trace: Trace
    stack: AsyncExitStack
    tried: Tried
    encoded_again: bool = False
    decoded_again: bool = False


class Pipeline:
    """Carries requests through the stages."""

    def __init__(self, client: EngineClient, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._dispatcher = Dispatcher(client, deadlines)
        self._encode_stage = EncodeStage(self._dispatcher)

    @asynccontextmanager
    async def answer(self, job: Job, trace: Trace) -> AsyncIterator[Answer]:
        """Carry a request to the point where its answer is complete, or its stream has begun.

        Leaving the block ends the stream and closes its connection.

        Raises:
            RouterError: the first cause of failure; also while the block reads the stream.
        """
        async with AsyncExitStack() as stack:
            yield await self._open(_Run(job, trace, stack, Tried(job.engines)))

    async def _open(self, run: _Run) -> Answer:
        encoded = await self._encode(run)
        while True:
            try:
                return await self._decode(run, await self._prefill(run, encoded))
            except (EngineFailedError, UnreachableError) as error:
                if _embedding_may_be_lost(run.job, error, encoded) and not run.encoded_again:
                    run.encoded_again = True
                    run.trace.re_encodes += 1
                    encoded = await self._encode(run, again=True)
                elif _may_decode_again(run.job, error) and not run.decoded_again:
                    run.decoded_again = True
                    run.trace.retries += 1
                else:
                    raise

    async def _encode(self, run: _Run, *, again: bool = False) -> EncodedMedia:
        job = run.job
        if not job.media or not job.topology.encodes_apart or not isinstance(job.body, ChatBody):
            return EncodedMedia()
        return await self._encode_stage.encode(job.body, job.media, job.engines, run.trace, again=again)

    async def _prefill(self, run: _Run, encoded: EncodedMedia) -> _Prefilled:
        job = run.job
        if not job.topology.hands_over_kv:
            return _Prefilled(encoded)
        with run.trace.timed(Role.PREFILL):
            reply = await self._dispatcher.reply(self._prefill_leg(job, encoded), run.trace, run.tried)
        if not job.topology.encodes_apart:
            encoded = prefilled_media(job.model, job.media, reply)
        check_placeholders(Role.PREFILL, job.model, encoded, reply.prompt)
        if not reply.kv_transfer_params:
            raise EngineFailedError(Role.PREFILL, "the engine returned no kv_transfer_params")
        return _Prefilled(encoded, reply.kv_transfer_params, reply.prompt)

    def _prefill_leg(self, job: Job, encoded: EncodedMedia) -> Leg:
        if isinstance(job.body, CompletionBody):
            return legs.completion_prefill_leg(job.body)
        if not job.topology.encodes_apart:
            return legs.prefill_raw_leg(job.body, job.media)
        return legs.prefill_leg(job.body, job.model, encoded)

    def _decode_leg(self, job: Job, prefilled: _Prefilled) -> Leg:
        body, model, encoded = job.body, job.model, prefilled.encoded
        if isinstance(body, CompletionBody):
            return legs.completion_leg(body, prefilled.kv)
        if prefilled.kv is None or prefilled.prompt is None:
            if job.topology.encodes_apart:
                return legs.generate_leg(body, model, encoded)
            return legs.generate_raw_leg(body, job.media)
        if legs.uses_expanded_prompt(body, model, encoded):
            return legs.decode_expanded_leg(body, model, encoded, prefilled.kv, prefilled.prompt)
        return legs.decode_leg(body, model, encoded, prefilled.kv)

    async def _decode(self, run: _Run, prefilled: _Prefilled) -> Answer:
        leg = self._decode_leg(run.job, prefilled)
        with run.trace.timed(Role.DECODE):
            if run.job.body.streams:
                return await self._begin_stream(run, leg, prefilled)
            return await self._full(run, leg, prefilled)

    async def _full(self, run: _Run, leg: Leg, prefilled: _Prefilled) -> FullAnswer:
        body = run.job.body
        endpoint = await self._dispatcher.choose(leg.role, run.tried)
        data = await self._dispatcher.client.answer(endpoint, leg, run.trace, self._deadlines.request)
        answer, reply = read_answer(leg.role, data)
        # Before the prompt: an error with status 200 has none either, and may be tried again.
        if not reply.choices:
            raise EngineFailedError(Role.DECODE, "the answer has no choices")
        self._check_prompt(run.job, prefilled, reply.prompt)
        if leg.path == legs.COMPLETION_PATH and isinstance(body, ChatBody):
            answer = chat_answer(answer, _role(body))
        drop_transfer_params(answer)
        if not body.wants_token_ids:
            drop_token_ids(answer)
        return FullAnswer(answer)

    async def _begin_stream(self, run: _Run, leg: Leg, prefilled: _Prefilled) -> StreamAnswer:
        endpoint = await self._dispatcher.choose(leg.role, run.tried)
        async with AsyncExitStack() as attempt:
            opened = self._dispatcher.client.stream(endpoint, leg, run.trace)
            response, clock = await attempt.enter_async_context(opened)
            stream = EventStream(response, clock, self._deadlines.idle)
            head: Head = await read_head(stream)
            self._check_prompt(run.job, prefilled, head.prompt_token_ids)
            run.stack.push_async_exit(attempt.pop_all())
        return StreamAnswer(head.events, stream, _transform(leg, run.job.body))

    def _check_prompt(self, job: Job, prefilled: _Prefilled, prompt: list[int] | None) -> None:
        if prefilled.prompt is not None:
            check_same_prompt(prefilled.prompt, prompt)
        elif job.topology.encodes_apart and isinstance(job.body, ChatBody):
            check_placeholders(Role.DECODE, job.model, prefilled.encoded, prompt)


def _embedding_may_be_lost(job: Job, error: StageError, encoded: EncodedMedia) -> bool:
    # vLLM has no status for it: a missing embedding is a 500 like any other.
    loads = Role.PREFILL if job.topology.hands_over_kv else Role.DECODE
    return isinstance(error, EngineFailedError) and bool(encoded.transfer) and error.stage == loads


def _may_decode_again(job: Job, error: StageError) -> bool:
    # Without a KV handoff an engine that answered 5xx would be given the very same leg.
    if error.stage != Role.DECODE:
        return False
    return job.topology.hands_over_kv or isinstance(error, UnreachableError)


def _transform(leg: Leg, body: Body) -> Transform:
    clean = without_transfer_params
    if not body.wants_token_ids:
        clean = _clean
    if isinstance(body, ChatBody) and leg.path == legs.COMPLETION_PATH:
        convert = ChatStream(_role(body))
        return lambda event: convert(clean(event))
    return clean


def _clean(event: bytes) -> bytes:
    return without_token_ids(without_transfer_params(event))


def _role(body: ChatBody) -> str:
    # As vLLM does: without a generation prompt the answer continues the last message.
    return body.messages[-1].role if known(body.add_generation_prompt) is False else "assistant"
