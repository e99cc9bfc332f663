"""Pods as the most suspicious cluster allows them: any user, nothing writable but a scratch volume."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from kubectl import Json, Kubectl, until

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
    """Runs pods of one command each."""

    kubectl: Kubectl
    numbers: count[int] = field(default_factory=lambda: count(1))

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
        volumes: list[Json] = [{"name": "tmp", "emptyDir": {}}]
        mounts: list[Json] = [{"name": "tmp", "mountPath": "/tmp"}]
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
        self.kubectl("create", "--filename=-", stdin=pod)
        state = until(f"{name} ends", lambda: self._ended(name), seconds)
        return Ended(state["exitCode"], self.kubectl("logs", name), state.get("message", ""))

    def _ended(self, name: str) -> Json | None:
        status = self.kubectl.get("pod", name)["status"]
        (state,) = [s["state"] for s in status.get("containerStatuses", [])] or [{}]
        ended: Json | None = state.get("terminated")
        return ended
