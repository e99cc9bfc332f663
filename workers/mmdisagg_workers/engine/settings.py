"""What a worker is told by its environment: role, topology, family, stage token and media policy.

`mmdisagg-worker` validates everything once before vLLM starts. The plugins run inside vLLM's processes,
where nobody can hand them objects; they read the same variables through `WorkerSettings.from_environ`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Final, TypeVar

from mmdisagg_workers.contract import (
    FAMILY,
    MEDIA,
    REVISION,
    STAGE_TOKEN,
    TOPOLOGY,
    ContractError,
    Geometry,
    MediaLimits,
    Placeholder,
    Role,
    Topology,
)

from .start_errors import BadSettings

ROLE: Final = "MMDISAGG_ROLE"
GEOMETRY: Final = "MMDISAGG_GEOMETRY"
DIE_WITH_PARENT: Final = "MMDISAGG_DIE_WITH_PARENT"
"""Process id of a local launcher: the worker ends when that process, its parent, is gone."""

AUTO: Final = "Auto"
MIN_TOKEN_CHARS: Final = 32

_C = TypeVar("_C", bound=StrEnum)


@dataclass(frozen=True)
class MediaPolicy(MediaLimits):
    """Where media may come from and how much of them one request may carry.

    Attributes:
        allowed_hosts: if not empty, the only hosts to fetch from: exact names or `*.suffix`.
        allow_private_networks: whether a listed host may have a private address.
    """

    allowed_hosts: tuple[str, ...] = ()
    allow_private_networks: bool = False

    @classmethod
    def from_json(cls, text: str) -> MediaPolicy:
        """Read the policy as the plan writes it; absent keys take their defaults.

        Raises:
            BadSettings: no JSON object, an unknown key, or a value of the wrong type.
        """
        raw = _json_object(MEDIA, text)
        limits = raw.pop("limits", {})
        hosts = raw.pop("allowedHosts", [])
        private = raw.pop("allowPrivateNetworks", False)
        if raw or not isinstance(limits, dict) or limits.keys() - _LIMITS:
            unknown = sorted(raw) + (sorted(limits.keys() - _LIMITS) if isinstance(limits, dict) else [])
            raise BadSettings(f"{MEDIA}: unknown keys {unknown}; limits takes {sorted(_LIMITS)}")
        if not isinstance(hosts, list) or not all(isinstance(h, str) and h for h in hosts):
            raise BadSettings(f"{MEDIA}: allowedHosts is {hosts!r}; give a list of host names")
        if not isinstance(private, bool):
            raise BadSettings(f"{MEDIA}: allowPrivateNetworks is {private!r}; give true or false")
        try:
            return cls(tuple(h.lower().rstrip(".") for h in hosts), private, **limits)
        except ContractError as error:
            raise BadSettings(f"{MEDIA}: {error}") from None


_LIMITS: Final = frozenset(f.name for f in fields(MediaLimits))


@dataclass(frozen=True)
class WorkerSettings:
    """Everything that the environment says.

    Attributes:
        role: this worker's role.
        topology: the deployment's topology; an aggregated worker outside of a deployment counts as `PD`.
        family: name of the model family, or `Auto` before it is resolved.
        revision: opaque hash of what must agree between engines.
        stage_token: the deployment's shared secret; None means no check (aggregated only).
        media: media policy.
        geometry: shape facts of the model; None before they are resolved.
        launcher: process id of the parent to end with; None in pods.
    """

    role: Role
    topology: Topology
    family: str = AUTO
    revision: str = ""
    stage_token: str | None = None
    media: MediaPolicy = MediaPolicy()
    geometry: Geometry | None = None
    launcher: int | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> WorkerSettings:
        """Read and validate all variables.

        Raises:
            BadSettings: a variable is missing or malformed, or role and topology do not fit.
        """
        role = _choice(environ.get(ROLE, ""), ROLE, Role)
        default = Topology.PD if role is Role.AGGREGATED else ""
        topology = _choice(environ.get(TOPOLOGY) or default, TOPOLOGY, Topology)
        if role is not Role.AGGREGATED and role not in topology.roles:
            raise BadSettings(f"{TOPOLOGY}: topology {topology} has no role {role}")
        geometry = environ.get(GEOMETRY)
        return cls(
            role=role,
            topology=topology,
            family=environ.get(FAMILY) or AUTO,
            revision=environ.get(REVISION, ""),
            stage_token=_token(environ.get(STAGE_TOKEN), role),
            media=MediaPolicy.from_json(environ.get(MEDIA) or "{}"),
            geometry=None if geometry is None else geometry_from_json(geometry),
            launcher=_pid(environ.get(DIE_WITH_PARENT)),
        )


def geometry_to_json(geometry: Geometry) -> str:
    """Spell shape facts for the environment."""
    return json.dumps(asdict(geometry))


def geometry_from_json(text: str) -> Geometry:
    """Read what `geometry_to_json` wrote.

    Raises:
        BadSettings: anything else.
    """
    raw = _json_object(GEOMETRY, text)
    try:
        placeholders = {name: Placeholder(**value) for name, value in raw.pop("placeholders").items()}
        return Geometry(placeholders=placeholders, **raw)
    except (TypeError, KeyError, AttributeError, ContractError) as error:
        raise BadSettings(f"{GEOMETRY}: {error}; it is written by mmdisagg-worker") from None


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise BadSettings(f"{name}: got {text[:80]!r}; give a JSON object")
    return value


def _choice(value: str, name: str, choices: type[_C]) -> _C:
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(choices)
        raise BadSettings(f"{name}: got {value!r}; give one of {known}") from None


def _token(value: str | None, role: Role) -> str | None:
    if not value:
        if role is Role.AGGREGATED:
            return None
        raise BadSettings(f"{STAGE_TOKEN}: empty; role {role} must know the deployment's stage token")
    if len(value) < MIN_TOKEN_CHARS or not value.isascii():
        raise BadSettings(f"{STAGE_TOKEN}: too weak; give at least {MIN_TOKEN_CHARS} ASCII characters")
    return value


def _pid(value: str | None) -> int | None:
    if not value:
        return None
    if not value.isdecimal():
        raise BadSettings(f"{DIE_WITH_PARENT}: got {value!r}; give the process id of the launcher")
    return int(value)
