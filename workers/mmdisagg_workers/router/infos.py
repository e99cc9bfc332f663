"""What engines tell about themselves, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import aiohttp

from mmdisagg_workers.contract import (
    CONTRACT_VERSION,
    INFO_PATH,
    ContractError,
    DecodeForm,
    ModelInfo,
    Role,
    UnknownFamilyError,
    family,
)

from .endpoints import Endpoint
from .errors import NotReadyError
from .legs import Model

INFO_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)


def agreed_info(endpoints: Iterable[Endpoint]) -> ModelInfo:
    """Return the info of engines that must all agree, that of the first.

    Raises:
        NotReadyError: an info is missing, or two differ; the message says which.
    """
    first, *others = [_info(endpoint) for endpoint in endpoints]
    for other in others:
        if difference := first.disagreement(other):
            raise NotReadyError(f"The engines disagree on {difference}.")
    return first


def roles_told(role: Role) -> tuple[Role, ...]:
    """Return what an engine of a role may say that its role is."""
    return (role, Role.AGGREGATED) if role is Role.DECODE else (role,)


def model_of(info: ModelInfo, form: DecodeForm | None) -> Model:
    """Return the model that engines with this info serve.

    Args:
        info: what they agree on.
        form: how decode is to be told about media; None for the family's default.

    Raises:
        NotReadyError: the router cannot serve such engines; the message says why.
    """
    if info.contract_version != CONTRACT_VERSION:
        message = f"contract version {info.contract_version}, the router has {CONTRACT_VERSION}"
        raise NotReadyError(f"The engines have {message}.")
    try:
        entry = family(info.family)
    except UnknownFamilyError as error:
        raise NotReadyError(str(error)) from None
    chosen = form or entry.default_form
    if chosen not in entry.decode_forms:
        known = ", ".join(entry.decode_forms)
        raise NotReadyError(f"decode contract {chosen}: {entry.name} takes {known}.")
    return Model(entry, info, chosen)


def _info(endpoint: Endpoint) -> ModelInfo:
    if endpoint.info is None:
        raise NotReadyError(f"The {endpoint.role} engine at {endpoint.url} is not ready: {endpoint.problem}.")
    if endpoint.info.role not in roles_told(endpoint.role):
        raise NotReadyError(
            f"The engine at {endpoint.url} has role {endpoint.info.role}, not {endpoint.role}."
        )
    return endpoint.info


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
