"""The one adaptation of foreign code: NIXL's progress thread sleeps between polls instead of spinning.

NIXL's Python API (1.5.1) sets `pthrDelay = 0` on every agent it makes and offers no argument for it. The
progress thread then polls without pause: after its first transfer an idle prefill or decode worker burns a
whole core, which starves its neighbours. A delay of 1 ms brings that to 2-4 % of a core and leaves the
latency of transfers as it was or steadier (`bench/nixl_idle.py` measures both).

A test reads NIXL's source and fails when the line is gone; this file can be deleted then.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, Final

PROGRESS_DELAY_US: Final = 1000
"""Pause between two polls of the progress thread, microseconds."""


def install() -> bool:
    """Quiet the NIXL that vLLM uses in this process, whichever CUDA build that is.

    Goes through vLLM's own loader, because that sets UCX variables before the first import.

    Returns:
        Whether NIXL is installed here.
    """
    agent_config = importlib.import_module("vllm.distributed.nixl_utils").nixl_agent_config
    if agent_config is None:
        return False
    quiet(sys.modules[agent_config.__module__])
    return True


def quiet(api: ModuleType) -> None:
    """Make `api` (NIXL's `_api` module) give new agents a progress delay above zero; idempotent."""
    bindings = api.nixlBind
    if not hasattr(bindings.nixlAgentConfig, "quiet_delay_us"):
        bindings.nixlAgentConfig = _with_delay(bindings.nixlAgentConfig)


def _with_delay(base: Any) -> type:
    class QuietAgentConfig(base):
        quiet_delay_us = PROGRESS_DELAY_US

        def __setattr__(self, name: str, value: object) -> None:
            spins = name == "pthrDelay" and value == 0
            super().__setattr__(name, self.quiet_delay_us if spins else value)

    return QuietAgentConfig
