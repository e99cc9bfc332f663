"""Fixtures of the CLI tests."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import Machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A machine with fake roles; the test's own process runs on it too."""
    machine = Machine(tmp_path)
    monkeypatch.setattr(sys, "executable", str(machine.bin / "python"))
    for name in ("XDG_STATE_HOME", "MMDISAGG_ENGINE_SLOTS", "HF_TEST_MARK", "COLUMNS"):
        monkeypatch.setenv(name, machine.environment[name])
    monkeypatch.setattr("tempfile.tempdir", str(machine.temporary))
    yield machine
    for pid in machine.processes():
        os.kill(pid, signal.SIGKILL)
