"""The router's image is small: nothing of an engine is ever imported."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("vllm", "torch", "numpy", "pydantic", "transformers", "mmdisagg_workers.engine", "mmdisagg_operator")


def test_the_router_loads_no_engine_library():
    code = f"import sys, mmdisagg_workers.router.main; print([m for m in {HEAVY} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
