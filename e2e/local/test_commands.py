"""The commands of the README on real engines: up, verify, demo and down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import requests
from chat import Server
from pictures import about, image_part
from stack import ROOT
from test_qwen2_5_vl import solid

from mmdisagg_cli.processes import is_alive, session_members
from mmdisagg_cli.state import StateStore

FILE = ROOT / "examples/local/shapes.yaml"
NAME = "shapes"


@pytest.fixture(scope="module")
def machine(stacks):
    """A state directory and a temporary one of our own, and no other engines."""
    stacks.stop()
    # Not pytest's: vLLM's sockets lie below it, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="mmdisagg-commands-", ignore_cleanup_errors=True) as home:
        machine = Machine(Path(home))
        try:
            yield machine
        finally:
            machine.run("down", "--all")


class Machine:
    """Runs `mmdisagg` as a user would, in a home of its own."""

    def __init__(self, home: Path) -> None:
        """Make the home's directories."""
        self.state, self.temporary = home / "state", home / "tmp"
        for directory in (self.state, self.temporary):
            directory.mkdir()
        self.store = StateStore(self.state / "mmdisagg")

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        variables = {"XDG_STATE_HOME": str(self.state), "TMPDIR": str(self.temporary)}
        command = [Path(sys.executable).with_name("mmdisagg"), *map(str, arguments)]
        return subprocess.run(
            command, env=os.environ | variables, capture_output=True, text=True, timeout=600, check=False
        )

    def files(self) -> set[str]:
        """Everything below the home but the lock of the states and the pictures that `demo` keeps."""
        found = [path for top in (self.state, self.temporary) for path in top.rglob("*") if path.is_file()]
        return {str(path) for path in found if path.name != ".lock" and "mmdisagg-demo-" not in str(path)}


def test_up_verify_demo_and_down_on_real_engines(machine):
    shared_memory = set(os.listdir("/dev/shm"))
    started = machine.run("up", "-f", FILE, "--detach")
    assert started.returncode == 0, started.stderr
    state = machine.store.running(NAME)
    assert state.url in started.stdout
    answer = Server(state.url, "shapes").ask(about(image_part(solid("red")), text="What is in the image?"))
    assert "red" in answer.text

    verified = machine.run("verify", "-f", FILE, "--requests", 12, "-o", "json")
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout) == {"requests": 12, "identical": 12, "different": 0, "errors": 0}
    assert "warning" not in verified.stderr

    shown = machine.run("demo", "-f", FILE, "--seed", 3)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "2 of 2 answers equal to the aggregated engine's, token for token" in shown.stdout
    assert shown.stdout.count("time of encode") == 2

    # Both used what ran, and left it running.
    assert machine.store.running(NAME) == state
    assert requests.get(state.url + "/ready", timeout=10).status_code == 200
    assert machine.run("down", NAME).returncode == 0
    assert not is_alive(state.supervisor)
    assert [member for role in state.roles for member in session_members(role.process)] == []
    assert machine.files() == set()
    assert set(os.listdir("/dev/shm")) <= shared_memory
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(state.url + "/health", timeout=10)
