"""Which engine gets a leg, and the one second try that a broken connection earns."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from mmdisagg_workers.contract import Role

from .client import EngineClient
from .endpoints import Endpoint
from .engines import EngineSet
from .errors import NotReadyError, UnreachableError
from .legs import Leg
from .replies import EngineReply, read_reply
from .settings import Deadlines
from .trace import Trace

RETRY_PAUSE_SECONDS: Final = 0.1
"""Wait before an engine that just failed is asked again, when there is no other."""


@dataclass
class Tried:
    """The engines that one request may use, and those that it has used: a second try goes elsewhere.

    Attributes:
        engines: the set that the request stays with.
        endpoints: the used ones.
    """

    engines: EngineSet
    endpoints: set[Endpoint] = field(default_factory=set)


class Dispatcher:
    """Sends the legs of requests to the engines of their roles."""

    def __init__(self, client: EngineClient, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self.client = client

    async def choose(self, role: Role, tried: Tried) -> Endpoint:
        """Return the engine for the next leg and note it as tried.

        Raises:
            NotReadyError: the role has no engine.
        """
        pool = tried.engines.pools[role]
        endpoint = pool.choose(asyncio.get_running_loop().time(), tried.endpoints)
        if endpoint is None:
            raise NotReadyError(f"There is no {role} engine.")
        if endpoint in tried.endpoints:
            await asyncio.sleep(RETRY_PAUSE_SECONDS)
        tried.endpoints.add(endpoint)
        return endpoint

    async def reply(self, leg: Leg, trace: Trace, tried: Tried) -> EngineReply:
        """Send an encode or prefill leg and read its answer; a broken connection gets one more try.

        Raises:
            EngineRefusedError: the engine answered 4xx.
            StageError: no usable answer.
        """
        try:
            return await self._reply_once(leg, trace, tried)
        except UnreachableError:
            trace.retries += 1
            return await self._reply_once(leg, trace, tried)

    async def _reply_once(self, leg: Leg, trace: Trace, tried: Tried) -> EngineReply:
        endpoint = await self.choose(leg.role, tried)
        return read_reply(leg.role, await self.client.answer(endpoint, leg, trace, self._deadlines.stage))
