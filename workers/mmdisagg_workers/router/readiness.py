"""Whether requests can be served now, and for which model: kept up to date by watching the engines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from mmdisagg_workers.contract import DecodeForm

from .endpoints import Pool
from .errors import NotReadyError
from .infos import InfoReader, agreed_model
from .legs import Model
from .topology import Role, Topology

RETRY_SECONDS: Final = 0.5
REFRESH_SECONDS: Final = 5.0


class Readiness:
    """Asks the engines for their infos, again and again, and says whether they agree."""

    def __init__(
        self, topology: Topology, pools: Mapping[Role, Pool], form: DecodeForm | None, reader: InfoReader
    ) -> None:
        self._topology = topology
        self._pools = pools
        self._form = form
        self._reader = reader
        self._state: Model | NotReadyError = NotReadyError("The engines have not been asked yet.")
        self.draining = False

    def model(self) -> Model:
        """Return the model that all engines agree on.

        Raises:
            NotReadyError: an info is missing, or two differ; the message says which.
        """
        if isinstance(self._state, NotReadyError):
            raise NotReadyError(self._state.message)
        return self._state

    def check(self) -> Model:
        """Return the model when new requests should come here.

        Raises:
            NotReadyError: as `model`; or no engine of a role answers now; or the router is shutting down.
        """
        model = self.model()
        if self.draining:
            raise NotReadyError("The router is shutting down.")
        for role in self._topology.roles:
            problems = [f"{endpoint.url}: {endpoint.problem}" for endpoint in self._pools[role].endpoints]
            if all(endpoint.problem for endpoint in self._pools[role].endpoints):
                raise NotReadyError(f"No {role} engine answers ({'; '.join(problems)}).")
        return model

    async def watch(self) -> None:
        """Refresh until cancelled, more often while an engine does not answer."""
        while True:
            await self.refresh()
            missing = any(e.problem for pool in self._pools.values() for e in pool.endpoints)
            await asyncio.sleep(RETRY_SECONDS if missing else REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Ask every engine once."""
        endpoints = [endpoint for pool in self._pools.values() for endpoint in pool.endpoints]
        await asyncio.gather(*map(self._reader.read, endpoints))
        try:
            self._state = agreed_model(self._pools, self._topology, self._form)
        except NotReadyError as reason:
            self._state = reason
