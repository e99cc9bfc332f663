"""The HTTP front: reads requests, runs the pipeline, writes answers and streams.

Each request ends in exactly one outcome, which its log line and the metrics name:
`ok`, `overloaded` (not admitted), `invalid` (the router refused), `refused` (an engine refused), `failed`,
`timeout`, `mismatch`, `unavailable`, `internal_error` (the router itself failed), `client_gone`,
`client_slow` (it did not take its stream).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from .admission import Admission, Slot
from .body import Body
from .decode_stream import broken
from .engines import EngineSet
from .errors import (
    EngineRefusedError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    NotReadyError,
    OverloadedError,
    PromptMismatchError,
    RouterError,
    StageError,
    StageTimeoutError,
    TooLargeError,
    UnreachableError,
    UnsupportedEncodingError,
)
from .events import DONE, END, event_of, is_error
from .metrics import RouterMetrics
from .pipeline import Answer, FullAnswer, Job, Pipeline, StreamAnswer
from .readiness import Readiness
from .request_log import RequestLog
from .settings import Settings
from .trace import Trace, accepted_request_id
from .validation import Rules, checked, parse_chat, parse_completion

logger = logging.getLogger(__name__)

JSON: Final = "application/json"
FINISH_SECONDS: Final = 1.0
"""What an engine gets to end its response after `[DONE]`."""
_STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
_OUTCOMES: Final[tuple[tuple[type[RouterError], str], ...]] = (
    (InvalidRequestError, "invalid"),
    (ModelNotFoundError, "invalid"),
    (TooLargeError, "invalid"),
    (UnsupportedEncodingError, "invalid"),
    (EngineRefusedError, "refused"),
    (OverloadedError, "overloaded"),
    (NotReadyError, "unavailable"),
    (StageTimeoutError, "timeout"),
    (PromptMismatchError, "mismatch"),
    (InternalError, "internal_error"),
    (RouterError, "failed"),
)

Parser = Callable[[bytes], Body]


class ClientGoneError(Exception):
    """The client closed its connection; there is nobody to answer.

    Attributes:
        outcome: of the request.
    """

    outcome = "client_gone"


class ClientSlowError(ClientGoneError):
    """The client does not take its answer; it is not waited for any longer."""

    outcome = "client_slow"


@dataclass(frozen=True)
class Front:
    """Everything that the handlers need."""

    settings: Settings
    pipeline: Pipeline
    readiness: Readiness
    admission: Admission
    metrics: RouterMetrics
    log: RequestLog
    created: int

    def runner(self, drain: float) -> web.AppRunner:
        """Return what runs the application: a handler is cancelled when its client goes away.

        Args:
            drain: seconds that requests in flight get at shutdown.
        """
        return web.AppRunner(
            self.application(), handler_cancellation=True, access_log=None, shutdown_timeout=drain
        )

    def application(self) -> web.Application:
        """Return the application with all routes."""
        app = web.Application(middlewares=[_error_shape])
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model:.+}", self.one_model)
        app.router.add_get("/health", self.health)
        app.router.add_get("/ready", self.ready)
        app.router.add_get("/metrics", self.prometheus)
        return app

    async def health(self, _: web.Request) -> web.Response:
        """Answer while the process lives."""
        return web.Response()

    async def ready(self, _: web.Request) -> web.Response:
        """Answer 200 while requests can be served, else 503 with the reason."""
        serving = self.readiness.check()
        facts = {
            "status": "ready",
            "model": self.settings.model,
            "topology": serving.topology,
            "family": serving.model.family.name,
            "decode_contract": serving.model.form,
            "revision": serving.model.info.revision,
        }
        return _json(facts)

    async def prometheus(self, _: web.Request) -> web.Response:
        """Return the metrics."""
        return web.Response(body=self.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def models(self, _: web.Request) -> web.Response:
        """List the one model served."""
        return _json({"object": "list", "data": [self._card()]})

    async def one_model(self, request: web.Request) -> web.Response:
        """Describe a model."""
        name = request.match_info["model"]
        if name != self.settings.model:
            message = f"The model {name!r} does not exist; served: {self.settings.model!r}."
            raise ModelNotFoundError(message, "model")
        return _json(self._card())

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Serve `POST /v1/chat/completions`."""
        return await self._serve(request, parse_chat)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Serve `POST /v1/completions`."""
        return await self._serve(request, parse_completion)

    def _card(self) -> dict[str, object]:
        model = self.readiness.serving().model
        card: dict[str, object] = {"id": self.settings.model, "object": "model", "created": self.created}
        return card | {"owned_by": "mmdisagg", "max_model_len": model.info.limits.max_model_len}

    async def _serve(self, request: web.Request, parse: Parser) -> web.StreamResponse:
        deadline = asyncio.get_running_loop().time() + self.settings.deadlines.request
        request_id = accepted_request_id(request.headers.get("x-request-id"))
        trace = Trace(request_id, request.path, time.monotonic(), deadline, tenant=self._tenant(request))
        status, outcome, failure = 499, "client_gone", None
        try:
            response, failure = await self._answer(request, parse, trace)
            status, outcome = response.status, _outcome(failure)
            return response
        except ClientGoneError as gone:
            outcome = gone.outcome
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=status)
        finally:
            self.metrics.record(trace, outcome)
            self.log.record(trace, status, outcome, failure)

    def _tenant(self, request: web.Request) -> str:
        header = self.settings.tenant_header
        # Of several such headers a gateway's is not known from a client's: all of them name the tenant.
        return "\n".join(request.headers.getall(header, ())) if header else ""

    async def _answer(
        self, request: web.Request, parse: Parser, trace: Trace
    ) -> tuple[web.StreamResponse, RouterError | None]:
        stream: web.StreamResponse | None = None
        delivered: web.StreamResponse | None = None
        try:
            async with AsyncExitStack() as stack:
                slot = stack.enter_context(self.admission.slot())
                # Before the body: while nobody can serve it, it need not be read.
                await self.readiness.settled()
                body = _parsed(parse, await self._body(request, slot), trace)
                answer = await self._open(stack, body, trace)
                if isinstance(answer, FullAnswer):
                    return _json(answer.body, trace.headers()), None
                stream = web.StreamResponse(headers=_STREAM_HEADERS | trace.headers())
                await _prepare(stream, request)
                await self._relay(answer, stream)
                delivered = stream
                await _finish(answer)
        except ClientGoneError:
            raise
        except Exception as error:
            if delivered is not None:
                # The client has seen [DONE]: nothing may follow it, and nothing is wrong with its answer.
                return delivered, None
            failure = _typed(error, trace.request_id)
            return await self._failed(failure, stream, trace), failure
        return stream, None

    async def _relay(self, answer: StreamAnswer, stream: web.StreamResponse) -> None:
        batch: list[bytes] | None = answer.head
        while batch is not None:
            end = next((i for i, event in enumerate(batch) if event == DONE or is_error(event)), len(batch))
            answer.rest.pause()
            await self._write(stream, _joined(map(answer.transform, batch[:end])))
            if end < len(batch):
                return await self._close(stream, batch[end])
            answer.rest.relax()
            batch = await answer.rest.batch()
        raise UnreachableError("decode", "the stream broke off")

    async def _close(self, stream: web.StreamResponse, event: bytes) -> None:
        if event != DONE:
            raise broken(event)
        await self._write(stream, DONE + END)

    async def _failed(
        self, error: RouterError, stream: web.StreamResponse | None, trace: Trace
    ) -> web.StreamResponse:
        if stream is None:
            return _error_response(error, trace.headers())
        # The status is sent: the client learns of the failure by an event, and never sees [DONE].
        await self._write(stream, event_of(error.body()) + END)
        return stream

    async def _write(self, stream: web.StreamResponse, data: bytes) -> None:
        try:
            async with asyncio.timeout(self.settings.deadlines.write):
                await stream.write(data)
        except ConnectionError:
            # aiohttp's client side raises the same for a lost engine.
            raise ClientGoneError from None
        except TimeoutError:
            raise ClientSlowError from None

    async def _open(self, stack: AsyncExitStack, body: Body, trace: Trace) -> Answer:
        """Begin the answer; a request that outlives its engines starts again, once, with the next."""
        engines = await self.readiness.settled()
        try:
            return await stack.enter_async_context(
                self.pipeline.answer(self._job(body, engines, trace), trace)
            )
        except (NotReadyError, UnreachableError) as failure:
            newer = await self.readiness.settled()
            if newer is engines and isinstance(failure, UnreachableError):
                raise
        trace.retries += 1
        return await stack.enter_async_context(self.pipeline.answer(self._job(body, newer, trace), trace))

    def _job(self, body: Body, engines: EngineSet, trace: Trace) -> Job:
        rules = Rules(self.settings.model, engines.topology, engines.model.family, self.settings.limits)
        with _unreadable():
            media = checked(body, rules)
        trace.media = len(media)
        return Job(body, media, engines)

    async def _body(self, request: web.Request, slot: Slot) -> bytes:
        # Of several such headers aiohttp obeys the last.
        if any(value.lower() != "identity" for value in request.headers.getall("Content-Encoding", ())):
            raise UnsupportedEncodingError("Content-Encoding: send the body uncompressed.")
        limit, body = self.settings.limits.body_bytes, bytearray()

        def check(size: int) -> None:
            if size > limit:
                message = f"The body is larger than {limit} bytes, which media.limits allow at most."
                raise TooLargeError(message)
            slot.hold(size)

        check(request.content_length or 0)
        try:
            async with asyncio.timeout(self.settings.deadlines.body):
                async for piece in request.content.iter_any():
                    check(len(body) + len(piece))
                    body += piece
        except TimeoutError:
            raise InvalidRequestError("The body did not arrive in time.", None, "body_timeout") from None
        return bytes(body)


def _parsed(parse: Parser, data: bytes, trace: Trace) -> Body:
    with _unreadable():
        body = parse(data)
    trace.model, trace.stream = body.model, body.streams
    return body


@contextmanager
def _unreadable() -> Iterator[None]:
    try:
        yield
    except (RecursionError, OverflowError) as error:
        raise InvalidRequestError(f"The body cannot be read: {error}", None, "invalid_json") from None


def _typed(error: Exception, request_id: str) -> RouterError:
    if isinstance(error, RouterError):
        return error
    logger.error("request %s failed", request_id, exc_info=error)
    return InternalError("The router failed; its log has the cause under this request's id.")


async def _finish(answer: StreamAnswer) -> None:
    # The answer is complete; what the engine does with the connection now concerns nobody.
    with suppress(StageError, TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(FINISH_SECONDS):
            await answer.rest.finish()


def _joined(events: Iterable[bytes]) -> bytes:
    return b"".join(event + END for event in events)


async def _prepare(stream: web.StreamResponse, request: web.Request) -> None:
    try:
        await stream.prepare(request)
    except ConnectionError:
        raise ClientGoneError from None


def _outcome(error: RouterError | None) -> str:
    if error is None:
        return "ok"
    return next(outcome for kind, outcome in _OUTCOMES if isinstance(error, kind))


def _json(value: object, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=JSON, headers=headers)


def _error_response(error: RouterError, headers: dict[str, str]) -> web.Response:
    return web.Response(
        body=error.json(), status=error.status, content_type=JSON, headers=headers | error.headers()
    )


@web.middleware
async def _error_shape(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except RouterError as error:
        return _error_response(error, {})
    except web.HTTPException as error:
        if error.status < 400:
            raise
        shaped = InvalidRequestError(f"{request.method} {request.path}: {error.reason}", None, "http_error")
        shaped.status = error.status
        return _error_response(shaped, {})
    except Exception as error:
        return _error_response(_typed(error, f"{request.method} {request.path}"), {})
