"""The operator's release: installed, upgraded and removed by Helm."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kubectl import Kubectl
from restricted_pods import SOME_USER

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/mmdisagg-operator"
RELEASE, NAMESPACE = "mmdisagg", "mmdisagg-system"
CRD = "multimodaldisaggdeployments.mmdisagg.io"
OWN = f"--selector=app.kubernetes.io/instance={RELEASE}"
KINDS = "all,serviceaccounts,configmaps,leases,roles,rolebindings,clusterroles,clusterrolebindings"


class Installed:
    """The operator for the whole cluster, in a namespace of its own."""

    def __init__(self, helm: tuple[str, ...], kubectl: Kubectl, image: Callable[..., str]) -> None:
        self.helm, self.cluster = helm, kubectl
        self.kubectl = kubectl.inside(NAMESPACE)
        found = re.fullmatch(r"(.*)/mmdisagg-operator:(.*)", image("operator"))
        assert found
        registry, tag = found.groups()
        self.values: dict[str, Any] = {
            "registry": registry,
            **{name: {"tag": tag} for name in ("image", "workerImage", "routerImage")},
            "podSecurityContext": {"runAsUser": SOME_USER},
        }

    def install(self) -> None:
        self._run("install", RELEASE, str(CHART), "--create-namespace", "--wait", "--timeout=120s")

    def upgrade(self, **values: Any) -> None:
        self.values |= values
        self._run("upgrade", RELEASE, str(CHART), "--wait", "--timeout=120s")

    def uninstall(self) -> None:
        self._run("uninstall", RELEASE, "--wait", "--ignore-not-found")

    def remove(self) -> None:
        """Leave nothing: not the CRD either, nor what an earlier run has left."""
        self.uninstall()
        self.cluster("delete", "crd", CRD, "--ignore-not-found", "--wait")
        self.cluster("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")

    def objects(self) -> set[str]:
        """What the release has made, its CRD apart."""
        return self.cluster.names(KINDS, "--all-namespaces", OWN)

    def pod(self) -> Mapping[str, Any]:
        """The one pod that is not being deleted."""
        found = self.kubectl.items("pods", OWN)
        (only,) = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return only

    def _run(self, *words: str) -> None:
        values = ("--values=-",) if words[0] in ("install", "upgrade") else ()
        command = [*self.helm, *words, f"--namespace={NAMESPACE}", *values]
        done = subprocess.run(
            command, input=json.dumps(self.values), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
