"""A resource in the cluster: what is asked for, what its status says, what its pods do."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from documents import merged
from kubectl import Json, Kubectl, until

from testbed.errors import NotInTime

ROOT = Path(__file__).resolve().parents[2]
LABEL = "mmdisagg.io/deployment"
MADE = (
    "deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,persistentvolumeclaims,"
    "poddisruptionbudgets,networkpolicies,pods"
)
"""The kinds of objects that a resource becomes."""
READ_METRICS = (
    "import urllib.request as r; "
    "print(r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:8000/metrics').read().decode())"
)
LOADING_SECONDS = 420


@dataclass(frozen=True)
class Places:
    """Where things are on the cluster's nodes.

    Attributes:
        models: folder with this repository's models.
        engine: folder of the engine's environment; None where the worker image holds its engine.
        first: name of one node.
        second: name of another one.
    """

    models: Path
    engine: Path | None
    first: str
    second: str

    def engine_role(self, node: str) -> Json:
        """What a role of engines on CPUs needs: one GPU that is a number only, so that GPUs can run out."""
        role: Json = {
            "replicas": 1,
            "resources": {"limits": {"nvidia.com/gpu": 1}},
            "scheduling": {"nodeSelector": {"kubernetes.io/hostname": node}},
        }
        if self.engine is not None:
            folder = {"path": str(self.engine), "type": "Directory"}
            role["volumes"] = [{"name": "engine", "hostPath": folder}]
            role["volumeMounts"] = [{"name": "engine", "mountPath": "/engine", "readOnly": True}]
        return role


def shapes(name: str, places: Places, roles: Mapping[str, str], **spec: Any) -> Json:
    """The resource of local mode's example, for pods.

    Args:
        name: the resource's.
        places: where things are.
        roles: the node of each engine role.
        spec: more of its spec.
    """
    made = yaml.safe_load((ROOT / "examples/local/shapes.yaml").read_text())
    made["metadata"] = {"name": name}
    asked = made["spec"]
    asked["model"]["volume"] = {"hostPath": {"path": str(places.models / "shapes"), "type": "Directory"}}
    for role in ("encode", "prefill", "decode"):
        asked.pop(role)
    asked |= {role: places.engine_role(node) for role, node in roles.items()}
    return changed(made, **spec)


def changed(resource: Json, **spec: Any) -> Json:
    """The resource with a changed spec: mappings are merged, None removes."""
    return {**resource, "spec": merged(resource["spec"], spec)}


class Deployed:
    """One resource, and what a user sees of it."""

    def __init__(self, kubectl: Kubectl, resource: Json) -> None:
        self.kubectl, self.resource = kubectl, resource
        self.name = resource["metadata"]["name"]

    def apply(self, **spec: Any) -> None:
        """`kubectl apply` it; with changes of its spec that stay."""
        self.resource = changed(self.resource, **spec)
        self.kubectl.apply(self.resource)

    def delete(self) -> None:
        self.kubectl("delete", "mmdd", self.name, "--ignore-not-found", "--wait")

    def status(self) -> Json:
        """Its status; empty until the operator has seen the last change."""
        live = self.kubectl.get("mmdd", self.name)
        status = live.get("status", {})
        return status if status.get("observedGeneration") == live["metadata"]["generation"] else {}

    def condition(self, kind: str) -> Json:
        found = (c for c in self.status().get("conditions", ()) if c["type"] == kind)
        return next(found, {"status": "", "reason": "", "message": ""})

    def says(self, kind: str, status: str, reason: str, seconds: float = 120.0) -> str:
        """Wait until a condition says so; returns its message."""

        def said() -> bool:
            found = self.condition(kind)
            return (found["status"], found["reason"]) == (status, reason)

        try:
            until(f"{self.name}: {kind}={status} {reason}", said, seconds)
        except NotInTime as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None
        return str(self.condition(kind)["message"])

    def serves(self, seconds: float = LOADING_SECONDS) -> None:
        """Wait until every condition is True."""

        def settled() -> bool:
            conditions = self.status().get("conditions", ())
            return bool(conditions) and all(c["status"] == "True" for c in conditions) and self._complete()

        try:
            until(f"{self.name}: every condition True", settled, seconds)
        except NotInTime as error:
            raise AssertionError(f"{error}\n{self.describe()}\n{self.logs()}") from None

    def _complete(self) -> bool:
        return self.condition("Progressing")["reason"] == "Complete"

    def describe(self) -> str:
        return self.kubectl("describe", "mmdd", self.name)

    def logs(self) -> str:
        """The last lines of every pod."""
        return self.kubectl("logs", f"--selector={LABEL}={self.name}", "--tail=30", "--prefix")

    def roles(self) -> tuple[str, ...]:
        """Its roles, as its status knows them."""
        return tuple(self.status()["roles"])

    def pods(self, role: str) -> list[Json]:
        """The pods of a role that are not being deleted."""
        return [pod for pod in self.all_pods(role) if "deletionTimestamp" not in pod["metadata"]]

    def all_pods(self, role: str) -> list[Json]:
        """The pods of a role, those that are ending among them."""
        return self.kubectl.items("pods", f"--selector={LABEL}={self.name},mmdisagg.io/role={role}")

    def pod_names(self, role: str) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods(role)}

    def metric(self, pod: str, name: str) -> float:
        """The sum of a metric's series in one pod."""
        text = self.kubectl("exec", pod, "--", "python3", "-c", READ_METRICS)
        lines = (line for line in text.splitlines() if line.startswith((name + "{", name + " ")))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def role_metric(self, role: str, name: str) -> float:
        return sum(self.metric(pod, name) for pod in self.pod_names(role))

    def left(self) -> set[str]:
        """What is left of it, itself included."""
        selector = f"--selector={LABEL}={self.name}"
        return self.kubectl.names(MADE, selector) | {
            one for one in self.kubectl.names("mmdd") if one.endswith(f"/{self.name}")
        }

    def is_gone(self, seconds: float = 120.0) -> None:
        """Wait until nothing is left of it.

        Endpoints go a moment after their Services, and pods when their processes have ended.
        """
        deadline = time.monotonic() + seconds
        while left := self.left():
            assert time.monotonic() < deadline, left
            time.sleep(0.5)


def finalizers(objects: Iterable[Json]) -> set[str]:
    """The finalizers of objects, all together."""
    return {one for found in objects for one in found["metadata"].get("finalizers", ())}
