"""What is added to vLLM's worker class (`--worker-extension-cls`): methods that `collective_rpc` calls."""

from __future__ import annotations

from typing import Final

from .weights import WeightReport
from .worker_cores import CoreRestore

EXTENSION: Final = "mmdisagg_workers.engine.worker_extension.WorkerExtension"
"""What `--worker-extension-cls` is given; vLLM takes one class."""


class WorkerExtension(WeightReport, CoreRestore):
    """All additions in one class; their names must not clash with the worker's own."""
