"""Shared by all tests: how long each tier took, and a bound on the whole run."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent
RUN_LIMIT_SECONDS = float(os.environ.get("MMDISAGG_RUN_LIMIT_SECONDS", "4800"))
_started = time.monotonic()
_seconds: dict[str, float] = defaultdict(float)

settings.register_profile("default", deadline=None)
settings.register_profile("long", deadline=None, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


SETUP_SECONDS = (".setup-seconds", ".programs-seconds")
"""Written by the Makefile: how long the environment and the compiled programs took when they were made."""
TIERS = {"local": "local", "api": "API server", "charts": "API server", "cluster": "cluster"}


def tier(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return TIERS.get(parts[1], "unit, emulated") if parts[0] == "e2e" else "unit, emulated"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    before = time.monotonic()
    if before - _started > RUN_LIMIT_SECONDS:
        pytest.exit(f"stopped: the tests took longer than {RUN_LIMIT_SECONDS / 60:.0f} minutes", returncode=1)
    result = yield
    _seconds[tier(item.path)] += time.monotonic() - before
    return result


def pytest_terminal_summary(terminalreporter):
    found = [file for name in SETUP_SECONDS if (file := ROOT / ".venv" / name).exists()]
    tiers = {"setup": sum(float(file.read_text()) for file in found)} if found else {}
    terminalreporter.section("time per tier")
    for tier, seconds in {**tiers, **_seconds}.items():
        terminalreporter.write_line(f"{tier:>15}  {int(seconds // 60):3d} min {seconds % 60:4.1f} s")
