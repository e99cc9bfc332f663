"""A machine for the tests: fake roles installed beside a Python, and state, slots and temporary files of its own."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import yaml

HERE = Path(__file__).parent
DEPLOYMENT = {
    "apiVersion": "mmdisagg.io/v1alpha1",
    "kind": "MultimodalDisaggDeployment",
    "metadata": {"name": "fake"},
    "spec": {
        "model": {"source": "Path", "path": "model", "servedName": "fake-model"},
        "engine": {"device": "Cpu", "maxModelLen": 512},
        "encode": {},
        "prefill": {},
        "decode": {},
    },
}


def eventually(condition: Callable[[], object], timeout_s: float = 10.0) -> object:
    """Wait for a condition; fails the test when it does not come true in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)
    return value


class Machine:
    """Where a test's deployments run. Every process started on it can be found by a mark in its environment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mark = f"HF_TEST_MARK={uuid.uuid4().hex}"
        self.bin = root / "bin"
        self.state = root / "state" / "mmdisagg"
        self.temporary = root / "tmp"
        self.slots = root / "slots"
        for directory in (self.bin, self.temporary, root / "model"):
            directory.mkdir()
        (self.bin / "python").symlink_to(sys.executable)
        for name in ("mmdisagg-worker", "mmdisagg-router"):
            script = self.bin / name
            script.write_text(f"#!{sys.executable} -IS\n" + (HERE / "fake_role.py").read_text())
            script.chmod(0o755)
        self.behave({})
        self.write_deployment(DEPLOYMENT)

    @property
    def file(self) -> Path:
        return self.root / "fake.yaml"

    def write_deployment(self, document: object) -> None:
        self.file.write_text(yaml.safe_dump(document))

    def behave(self, behaviour: dict[str, dict[str, object]]) -> None:
        """Say what the fake roles do from their next start on."""
        (self.bin / "behaviour.json").write_text(json.dumps(behaviour))

    @property
    def environment(self) -> dict[str, str]:
        name, value = self.mark.split("=")
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_STATE_HOME": str(self.root / "state"),
            "TMPDIR": str(self.temporary),
            "MMDISAGG_ENGINE_SLOTS": str(self.slots),
            "COLUMNS": "200",
            name: value,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command, as a shell does: in a process group of its own."""
        return subprocess.Popen(
            [str(self.bin / "python"), "-m", "mmdisagg_cli.main", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=self.root,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=30)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def processes(self) -> list[int]:
        """The living processes of this machine."""
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if self._is_ours(path)]

    def leftovers(self) -> list[str]:
        """Whatever a deployment should have removed: processes, states, temporary files."""
        states = [path for path in self.state.glob("*") if path.name not in (".lock", ".failed")]
        found = [*self.processes(), *states, *self.temporary.glob("mmdisagg-*")]
        return [str(one) for one in found]

    def _is_ours(self, path: Path) -> bool:
        try:
            return self.mark.encode() in path.read_bytes()
        except OSError:
            return False
