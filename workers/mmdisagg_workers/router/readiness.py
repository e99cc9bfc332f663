"""Whether requests can be served now, and by which engines: kept up to date by asking the engines."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from mmdisagg_workers.contract import Role

from .endpoints import UNASKED, Endpoint
from .engines import Engines, EngineSet
from .errors import NotReadyError
from .infos import InfoReader

RETRY_SECONDS: Final = 0.5
REFRESH_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 2.0
"""How long a request waits for engines that are just being asked. One slice may say at once that the old
engine leaves and the new one is ready."""


class Readiness:
    """Asks the engines for their infos, again and again, and says which of them serve.

    Attributes:
        draining: whether the router is shutting down.
    """

    def __init__(self, engines: Engines, reader: InfoReader) -> None:
        self._engines = engines
        self._reader = reader
        self._state: EngineSet | NotReadyError = NotReadyError("The engines have not been asked yet.")
        self._changed = asyncio.Event()
        self._judged = asyncio.Event()
        self._watching = False
        self.draining = False

    def serving(self) -> EngineSet:
        """Return the engines that serve a new request.

        Raises:
            NotReadyError: there is no complete set; the message says what is missing.
        """
        if isinstance(self._state, NotReadyError):
            raise NotReadyError(self._state.message)
        return self._state

    async def settled(self) -> EngineSet:
        """Return the engines that serve a new request, after a moment if new ones are just being asked.

        Raises:
            NotReadyError: as `serving`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while isinstance(self._state, NotReadyError) and self._expects_more():
                    await self._judged.wait()
        return self.serving()

    def _expects_more(self) -> bool:
        return self._watching and any(endpoint.problem == UNASKED for endpoint in self._engines.endpoints)

    def count(self, role: Role) -> int:
        """Return how many engines of a role serve new requests."""
        if isinstance(self._state, NotReadyError) or role not in self._state.pools:
            return 0
        return len(self._state.pools[role].endpoints)

    def check(self) -> EngineSet:
        """Return the engines when new requests should come here.

        Raises:
            NotReadyError: as `serving`; or no engine of a role answers now; or the router is shutting down.
        """
        serving = self.serving()
        if self.draining:
            raise NotReadyError("The router is shutting down.")
        for role in serving.topology.roles:
            endpoints = serving.pools[role].endpoints
            if all(endpoint.problem for endpoint in endpoints):
                problems = [f"{endpoint.url}: {endpoint.problem}" for endpoint in endpoints]
                raise NotReadyError(f"No {role} engine answers ({'; '.join(problems)}).")
        return serving

    def engines_changed(self) -> None:
        """Take notice, at once, that there are other engines than before."""
        self._judge()
        self._changed.set()

    async def watch(self) -> None:
        """Refresh until cancelled: on changes, now and then, and more often while an engine is silent."""
        self._watching = True
        while True:
            self._changed.clear()
            await self.refresh()
            silent = any(endpoint.problem for endpoint in self._engines.endpoints)
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS if silent else REFRESH_SECONDS):
                    await self._changed.wait()

    async def refresh(self) -> None:
        """Ask every engine once."""
        await asyncio.gather(*map(self._ask, self._engines.endpoints))
        self._judge()

    async def _ask(self, endpoint: Endpoint) -> None:
        known, asked = endpoint.info, endpoint.problem != UNASKED
        await self._reader.read(endpoint)
        if endpoint.info != known or not asked:
            # The others may take as long as they like.
            self._judge()

    def _judge(self) -> None:
        try:
            self._state = self._engines.serving()
        except NotReadyError as reason:
            self._state = reason
        self._judged.set()
        self._judged = asyncio.Event()
