"""What the router is told at start: command line and environment, read once.

Environment: the stage token, sent with each leg, and of the media policy, which engines get too, the limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Struct

from mmdisagg_workers.contract import MEDIA, DecodeForm, MediaLimits, Role

MAX_IN_FLIGHT: Final = 512
"""Requests served at once where nothing else is said: two engines of vLLM's default batch (256) full."""


MAX_BYTES_IN_FLIGHT: Final = 2**30
"""Bytes of their bodies where nothing else is said. Each is held about three times: as it came, as it was
read, and in the leg to an engine."""


class SettingsError(ValueError):
    """The router cannot start with these settings; the message says which and why."""


class _Media(Struct):
    limits: MediaLimits = MediaLimits()


@dataclass(frozen=True)
class Deadlines:
    """How long the router waits, in seconds.

    Attributes:
        body: until a client has sent its request.
        connect: until a connection to an engine stands.
        stage: until an encode or prefill leg is answered, or decode's stream begins.
        idle: between two pieces of decode's stream.
        write: until a client has taken a piece of its stream.
        request: for the request as a whole, its stream included.
    """

    body: float = 60.0
    connect: float = 5.0
    stage: float = 300.0
    idle: float = 120.0
    write: float = 60.0
    request: float = 600.0


@dataclass(frozen=True)
class Settings:
    """Everything the router is told.

    Attributes:
        model: name under which clients ask for the model.
        endpoints: base URLs per role; none where the engines are discovered.
        discover: the deployment whose engines are discovered in the cluster, or None.
        decode_form: the form chosen by the resource, or None for the family's default.
        token: the stage token, or "" when the engines check none.
        limits: media limits.
        deadlines: how long to wait.
        max_in_flight: requests served at once.
        max_bytes_in_flight: bytes of their bodies.
        tenant_header: header that names who asks, or None where nobody is told apart.
    """

    model: str
    endpoints: Mapping[Role, tuple[str, ...]]
    discover: str | None = None
    decode_form: DecodeForm | None = None
    token: str = field(default="", repr=False)
    limits: MediaLimits = field(default_factory=MediaLimits)
    deadlines: Deadlines = Deadlines()
    max_in_flight: int = MAX_IN_FLIGHT
    max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT
    tenant_header: str | None = None


def limits_from(environment: Mapping[str, str]) -> MediaLimits:
    """Read the media limits.

    Raises:
        SettingsError: the variable is no JSON of the expected shape.
    """
    text = environment.get(MEDIA) or "{}"
    try:
        return msgspec.json.decode(text, type=_Media).limits
    except msgspec.DecodeError as error:
        raise SettingsError(f"{MEDIA}: {error}") from None
