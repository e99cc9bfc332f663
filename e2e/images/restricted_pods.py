"""Pods as the most suspicious cluster allows them: any user, nothing writable but a scratch volume."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# As OpenShift assigns them: no password file knows it, and its group is 0.
SOME_USER = 1000650000
RESTRICTED = {
    "runAsUser": SOME_USER,
    "runAsGroup": 0,
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True)
class Ended:
    """A pod that has ended."""

    code: int
    log: str
    message: str


@dataclass
class Pods:
    """A namespace for pods that run one command each."""

    kubectl: tuple[str, ...]
    namespace: str
    numbers: count[int] = field(default_factory=lambda: count(1))

    def __enter__(self) -> Pods:
        self.cluster("create", "namespace", self.namespace)
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster("delete", "namespace", self.namespace, "--wait=false")

    def run(
        self,
        image: str,
        *args: str,
        command: list[str] | None = None,
        engine: Path | None = None,
        seconds: float = 120,
    ) -> Ended:
        """Run a pod to its end.

        Args:
            image: its image.
            args: arguments after the command.
            command: what to run in the place of the image's own entry point.
            engine: folder of the node that is mounted where the test bed's worker image expects its engine.
            seconds: how long it may take.
        """
        volumes: list[dict] = [{"name": "tmp", "emptyDir": {}}]
        mounts: list[dict] = [{"name": "tmp", "mountPath": "/tmp"}]
        if engine:
            volumes.append({"name": "engine", "hostPath": {"path": str(engine), "type": "Directory"}})
            mounts.append({"name": "engine", "mountPath": "/engine", "readOnly": True})
        name = f"pod{next(self.numbers)}"
        container = {
            "name": "main",
            "image": image,
            "args": list(args),
            "securityContext": RESTRICTED,
            "volumeMounts": mounts,
            "env": [{"name": "HOME", "value": "/tmp"}],
            **({"command": command} if command else {}),
        }
        spec = {
            "containers": [container],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "volumes": volumes,
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self._run("create", "--filename=-", stdin=json.dumps(pod))
        state = self._ended(name, time.monotonic() + seconds)
        return Ended(state["exitCode"], self._run("logs", name), state.get("message", ""))

    def _ended(self, name: str, deadline: float) -> dict:
        while True:
            status = json.loads(self._run("get", "pod", name, "--output=json"))["status"]
            (state,) = [s["state"] for s in status.get("containerStatuses", [])] or [{}]
            if "terminated" in state:
                return state["terminated"]
            assert time.monotonic() < deadline, f"{name} does not end: {json.dumps(status)[:2000]}"
            time.sleep(0.3)

    def _run(self, *words: str, stdin: str | None = None) -> str:
        return self.cluster(f"--namespace={self.namespace}", *words, stdin=stdin)

    def cluster(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl, in no namespace; returns what it printed."""
        command = [*self.kubectl, *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout
