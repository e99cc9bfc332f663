"""Giving a worker back the cores that vLLM's NIXL connector takes from it on CPU platforms.

On the `cpu` platform the connector (vLLM 0.32.0, `nixl/base_worker.py`) pins the worker's main thread to the
last core of each NUMA node. Every prefill and decode worker of a machine then runs on that one core: a
prefill worker that polls while its KV blocks are leased keeps decode workers from running for up to the
whole lease (30 s), while the other cores are free. On accelerators nothing is pinned and nothing changes.
"""

from __future__ import annotations

import os
from typing import Final

CORES_AT_START: Final = frozenset(os.sched_getaffinity(0))
"""Cores of the main thread when this module is loaded, which in a worker is before any connector exists."""


class CoreRestore:
    """Worker extension: undoes the pinning once the worker is set up."""

    def restore_cores(self) -> list[int]:
        """Let the calling thread, the worker's main one, run where it could at first; return those cores."""
        os.sched_setaffinity(0, CORES_AT_START)
        return sorted(CORES_AT_START)
