"""Whether the engines are ready and belong together.

Each engine tells about itself; requests are served only while all of them agree, because a leg is built
from these facts: an engine of another revision would be given wrong positions and answer all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import aiohttp

from mmdisagg_workers.contract import (
    CONTRACT_VERSION,
    ContractError,
    DecodeForm,
    ModelInfo,
    UnknownFamilyError,
    family,
)

from .endpoints import Endpoint, Pool
from .errors import NotReadyError
from .legs import Model
from .topology import Role, Topology

INFO_PATH: Final = "/mmdisagg/v1/info"
INFO_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)


def agreed_model(pools: Mapping[Role, Pool], topology: Topology, form: DecodeForm | None) -> Model:
    """Return the model that all engines agree on.

    Raises:
        NotReadyError: a role has no engine, an info is missing, or two differ; the message says which.
    """
    infos = [_info(endpoint) for role in topology.roles for endpoint in _endpoints(pools, role)]
    first = infos[0]
    for other in infos[1:]:
        if difference := first.disagreement(other):
            raise NotReadyError(f"The engines disagree on {difference}.")
    return _model(first, topology, form)


def _endpoints(pools: Mapping[Role, Pool], role: Role) -> list[Endpoint]:
    endpoints = pools[role].endpoints
    if not endpoints:
        raise NotReadyError(f"There is no {role} engine.")
    return endpoints


def _info(endpoint: Endpoint) -> ModelInfo:
    if endpoint.info is None:
        raise NotReadyError(f"The {endpoint.role} engine at {endpoint.url} is not ready: {endpoint.problem}.")
    expected = (endpoint.role, "aggregated") if endpoint.role is Role.DECODE else (endpoint.role,)
    if endpoint.info.role not in expected:
        raise NotReadyError(
            f"The engine at {endpoint.url} has role {endpoint.info.role}, not {endpoint.role}."
        )
    return endpoint.info


def _model(info: ModelInfo, topology: Topology, form: DecodeForm | None) -> Model:
    if info.contract_version != CONTRACT_VERSION:
        message = f"contract version {info.contract_version}, the router has {CONTRACT_VERSION}"
        raise NotReadyError(f"The engines have {message}.")
    if info.topology != topology:
        raise NotReadyError(f"The engines run topology {info.topology}, the router was given {topology}.")
    try:
        entry = family(info.family)
    except UnknownFamilyError as error:
        raise NotReadyError(str(error)) from None
    chosen = form or entry.default_form
    if chosen not in entry.decode_forms:
        known = ", ".join(entry.decode_forms)
        raise NotReadyError(f"decode contract {chosen}: {entry.name} takes {known}.")
    return Model(entry, info, chosen)


class InfoReader:
    """Asks engines for their infos and keeps the answers at the endpoints."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def read(self, endpoint: Endpoint) -> None:
        """Ask one engine; a failure keeps the last info and notes the problem."""
        try:
            async with self._session.get(
                endpoint.url + INFO_PATH, timeout=INFO_TIMEOUT, allow_redirects=False
            ) as response:
                body = await response.read()
            if response.status != 200:
                endpoint.problem = f"HTTP {response.status}"
                return
            endpoint.info = ModelInfo.from_json(body)
            endpoint.problem = None
        except (aiohttp.ClientError, OSError, TimeoutError, ContractError) as error:
            endpoint.problem = str(error) or type(error).__name__
