"""Finds the deployment's engines in the cluster: lists its EndpointSlices, then watches them.

What was found stays valid while the API server is away: engines do not stop because nobody tells of them.
After an error everything is listed anew, later each time it happens again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec

from .api_server import ApiServer, ApiServerError
from .engines import DiscoveredEngines
from .slices import Slice, discovered, read_list, read_slice, selector

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 15.0
SHORT_WATCH_SECONDS: Final = 1.0
"""A watch that ends sooner is an error: going on at once would be a loop without a pause."""


@dataclass
class Backoff:
    """Pauses that double, each cut short by chance so that routers do not come all at once."""

    first: float = FIRST_PAUSE_SECONDS
    longest: float = LONGEST_PAUSE_SECONDS
    chance: Callable[[], float] = random.random
    _next: float = 0.0

    def reset(self) -> None:
        """Begin with short pauses again."""
        self._next = 0.0

    def pause(self) -> float:
        """Return the seconds to wait now."""
        self._next = min(self._next * 2 or self.first, self.longest)
        return self._next * (0.5 + 0.5 * self.chance())


class Discovery:
    """Keeps `DiscoveredEngines` up to date."""

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        deployment: str,
        engines: DiscoveredEngines,
        changed: Callable[[], None],
        backoff: Backoff | None = None,
    ) -> None:
        """Prepare.

        Args:
            server: the API server.
            namespace: the deployment's namespace.
            deployment: its name.
            engines: who is told.
            changed: called after that.
            backoff: how long to wait after errors.
        """
        self._server = server
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._selector = selector(deployment)
        self._engines = engines
        self._changed = changed
        self._backoff = backoff or Backoff()
        self._slices: dict[str, Slice] = {}

    async def run(self) -> None:
        """Follow the slices until cancelled."""
        while True:
            try:
                await self._follow()
            except ApiServerError as error:
                pause = self._backoff.pause()
                self._engines.problem = str(error)
                logger.warning("discovery: %s; trying again in %.1f s", error, pause)
                self._changed()
                await asyncio.sleep(pause)

    async def _follow(self) -> None:
        try:
            listed = read_list(await self._server.list(self._path, self._selector))
        except msgspec.DecodeError as error:
            raise ApiServerError(f"the list of slices cannot be read: {error}") from None
        self._slices = {one.metadata.name: one for one in listed.items}
        self._tell()
        version = listed.metadata.resource_version
        while True:
            version = await self._watch(version)

    async def _watch(self, version: str) -> str:
        """Follow one watch to its end, and return the version to go on from."""
        started = asyncio.get_running_loop().time()
        try:
            async with aclosing(self._server.watch(self._path, self._selector, version)) as events:
                async for event in events:
                    one = read_slice(event.object)
                    version = one.metadata.resource_version
                    self._backoff.reset()
                    if event.type != "BOOKMARK":
                        self._take(event.type, one)
        except msgspec.DecodeError as error:
            raise ApiServerError(f"a watch event cannot be read: {error}") from None
        if asyncio.get_running_loop().time() - started < SHORT_WATCH_SECONDS:
            raise ApiServerError("the API server ended the watch at once")
        self._backoff.reset()
        return version

    def _take(self, kind: str, one: Slice) -> None:
        if kind == "DELETED":
            self._slices.pop(one.metadata.name, None)
        else:
            self._slices[one.metadata.name] = one
        self._tell()

    def _tell(self) -> None:
        self._engines.replace(discovered(self._slices.values()))
        self._changed()
