"""vLLM general plugin: what must be in place in every process of a worker, before any engine exists."""

from __future__ import annotations

import os
from functools import cache

from mmdisagg_workers.contract import Role

from .settings import ROLE


def register() -> None:
    """Quiet NIXL, register the media connector, and tie engine processes to their parents.

    vLLM calls this in every process it starts, possibly more than once. Outside of `mmdisagg-worker` (any
    other vLLM in the same environment) it does nothing.
    """
    role = os.environ.get(ROLE)
    if role is not None:
        _set_up(role)


@cache
def _set_up(role: str) -> None:
    from . import media, parent_death, quiet_nixl

    parent_death.bind_engine_processes()
    media.register()
    if role in (Role.PREFILL, Role.DECODE):
        quiet_nixl.install()
