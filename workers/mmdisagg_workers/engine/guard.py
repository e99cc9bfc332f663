"""The worker's own gate in front of vLLM's server: an ASGI middleware, loaded by `--middleware`.

It asks for the deployment's stage token and refuses requests that this role must not answer, whoever sends
them. Bodies are read whole (they are needed whole), bounded, and handed on unchanged; responses pass
through untouched, so streams stay streams.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cached_property
from typing import Any, Final, TypeAlias

import orjson

from mmdisagg_workers.contract import INFO_PATH, STAGE_TOKEN_HEADER, ModelInfo, Role, family

from .guard_rules import ROWS, StageRules, Violation
from .settings import WorkerSettings
from .start_errors import BadSettings

OPEN_PATHS: Final = frozenset({"/health", "/metrics", INFO_PATH})
"""Probes, metrics and the worker's description are answered without the token."""

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class StageGuard:
    """The middleware; reads the settings when the first request arrives."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection: pass it on, or answer with the refusal."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if not self._knows_token(scope):
            await _answer(send, Violation(f"missing or wrong {STAGE_TOKEN_HEADER}", STAGE_TOKEN_HEADER, 401))
            return
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        await self._judge(scope, receive, send)

    async def _judge(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read(receive, self.max_body)
        if body is None:
            return
        too_large = Violation(f"the body exceeds {self.max_body} bytes", status=413)
        refusal = too_large if len(body) > self.max_body else self._refusal(scope, body)
        if refusal is not None:
            await _answer(send, refusal)
            return
        await self._app(scope, _replay(body, receive), send)

    def _refusal(self, scope: Scope, body: bytes) -> Violation | None:
        try:
            parsed = orjson.loads(body)
        except orjson.JSONDecodeError:
            return Violation("the body must be JSON")
        return self._rules(scope).violation(scope["path"], parsed)

    @cached_property
    def settings(self) -> WorkerSettings:
        """What the environment says."""
        return WorkerSettings.from_environ(os.environ)

    @cached_property
    def max_body(self) -> int:
        """Bytes that a leg of this role can have."""
        raw = ROWS[self.settings.topology, self.settings.role].raw
        return self.settings.media.leg_bytes(raw=raw)

    def _knows_token(self, scope: Scope) -> bool:
        token = self.settings.stage_token
        if token is None:
            return self.settings.role is Role.AGGREGATED
        sent = next((value for name, value in scope["headers"] if name == STAGE_TOKEN_HEADER.encode()), b"")
        return hmac.compare_digest(sent, token.encode())

    def _rules(self, scope: Scope) -> StageRules:
        settings = self.settings
        if settings.geometry is None:
            raise BadSettings("the engine was not started by mmdisagg-worker")
        info: ModelInfo | None = getattr(getattr(scope.get("app"), "state", None), "mmdisagg_info", None)
        return StageRules(
            row=ROWS[settings.topology, settings.role],
            family=family(settings.family),
            geometry=settings.geometry,
            media=settings.media,
            max_model_len=None if info is None else info.limits.max_model_len,
        )


async def _read(receive: Receive, limit: int) -> bytes | None:
    """Return the body, its beginning when it is longer than `limit`, or None when the client left."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit or not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Hand the body on once; later calls wait for what the client does next."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


async def _answer(send: Send, violation: Violation) -> None:
    headers = [(b"content-type", b"application/json")]
    if violation.status == 413:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": violation.status, "headers": headers})
    await send({"type": "http.response.body", "body": orjson.dumps(violation.body())})
