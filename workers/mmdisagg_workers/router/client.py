"""Legs over HTTP: one function per way of answering, every wait bounded, every failure typed.

A leg is sent once; trying again is the pipeline's decision. Leaving a context early (the client went
away, another stage failed) closes the connection, which makes vLLM abort the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import aiohttp

from mmdisagg_workers.contract import STAGE_TOKEN_HEADER

from .endpoints import Endpoint
from .errors import EngineFailedError, StageTimeoutError, UnreachableError
from .legs import Leg
from .replies import engine_error
from .settings import Deadlines
from .trace import LegIds, Trace

KEEPALIVE_SECONDS: Final = 4.0
"""Shorter than the 5 s after which vLLM's server closes idle connections."""


def open_session(deadlines: Deadlines, token: str) -> aiohttp.ClientSession:
    """Open the session that all legs share; needs a running loop.

    Args:
        deadlines: how long to wait for a connection.
        token: the stage token, or "".
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
    return aiohttp.ClientSession(
        connector=connector,
        headers={"Accept-Encoding": "identity"} | ({STAGE_TOKEN_HEADER: token} if token else {}),
        timeout=aiohttp.ClientTimeout(total=None, connect=deadlines.connect),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=2**18,
    )


class Clock:
    """The deadline that currently holds for one leg."""

    def __init__(self, timeout: asyncio.Timeout, stage: str, request_deadline: float) -> None:
        self._timeout = timeout
        self._stage = stage
        self._end = request_deadline

    def allow(self, seconds: float) -> None:
        """Give the next wait `seconds`, but never more than the request has left."""
        now = asyncio.get_running_loop().time()
        self._timeout.reschedule(min(now + seconds, self._end))


class EngineClient:
    """Sends legs to engines."""

    def __init__(self, session: aiohttp.ClientSession, deadlines: Deadlines) -> None:
        self._session = session
        self._ids = LegIds()
        self._deadlines = deadlines

    async def answer(self, endpoint: Endpoint, leg: Leg, trace: Trace, limit: float) -> bytes:
        """Send a leg and return its whole answer.

        Args:
            endpoint: the engine.
            leg: what to send.
            trace: the request it belongs to.
            limit: seconds until the answer must be complete.

        Raises:
            EngineRefusedError: the engine answered 4xx.
            StageError: no usable answer.
        """
        async with self._sent(endpoint, leg, trace, limit) as (response, _):
            return await response.read()

    @asynccontextmanager
    async def stream(
        self, endpoint: Endpoint, leg: Leg, trace: Trace
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, Clock]]:
        """Send a leg and yield its answer to be read piece by piece, each wait bounded by the clock.

        Raises:
            EngineRefusedError: the engine answered 4xx.
            StageError: no usable answer, also while the block reads it.
        """
        async with self._sent(endpoint, leg, trace, self._deadlines.stage) as opened:
            yield opened

    @asynccontextmanager
    async def _sent(
        self, endpoint: Endpoint, leg: Leg, trace: Trace, limit: float
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, Clock]]:
        headers = {
            "Content-Type": "application/json",
            "x-request-id": self._ids.next(trace.request_id, leg.role),
        }
        trace.note_sent(leg.role, len(leg.body))
        with endpoint.busy(), _typed_failures(endpoint):
            async with asyncio.timeout(None) as timeout:
                clock = Clock(timeout, leg.role, trace.deadline)
                clock.allow(limit)
                url = endpoint.url + leg.path
                # A redirect would carry the stage token and the prompt to another host.
                async with self._session.post(
                    url, data=leg.body, headers=headers, allow_redirects=False
                ) as response:
                    if response.status != 200:
                        raise engine_error(leg.role, response.status, await response.read())
                    yield response, clock


@contextmanager
def _typed_failures(endpoint: Endpoint) -> Iterator[None]:
    role = endpoint.role
    try:
        yield
    except (
        aiohttp.ConnectionTimeoutError,
        aiohttp.ClientConnectionError,
        aiohttp.ClientPayloadError,
    ) as error:
        endpoint.failed(asyncio.get_running_loop().time())
        raise UnreachableError(role, f"the connection to {endpoint.url} failed: {_reason(error)}") from None
    except TimeoutError:
        raise StageTimeoutError(role, f"{endpoint.url} did not answer in time") from None
    except aiohttp.ClientError as error:
        raise EngineFailedError(role, f"{endpoint.url} did not speak HTTP: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
