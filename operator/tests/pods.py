"""Pods and Deployments in the states that Kubernetes' controllers and kubelets bring them to."""

from typing import Any

from mmdisagg_operator.kinds import DEPLOYMENT, POD
from mmdisagg_operator.plan.objects import STARTUP_SECONDS

Json = dict[str, Any]
LOADING_LIMIT = STARTUP_SECONDS // 60


def condition(kind: str, status: str, **more: str) -> Json:
    return {"type": kind, "status": status, **more}


READY: Json = {
    "phase": "Running",
    "conditions": [condition("PodScheduled", "True"), condition("Ready", "True")],
    "containerStatuses": [{"name": "engine", "started": True, "restartCount": 0, "state": {"running": {}}}],
}


def container(state: Json, **more: Any) -> Json:
    """A pod on a node whose container is in `state`."""
    status = {"name": "engine", "image": "worker:1", "restartCount": 0, "state": state, **more}
    conditions = [condition("PodScheduled", "True"), condition("Ready", "False")]
    return {"phase": "Pending", "conditions": conditions, "containerStatuses": [status]}


def waiting(reason: str, message: str = "", **more: Any) -> Json:
    return container({"waiting": {"reason": reason, "message": message}}, **more)


def ended(code: int, message: str = "", restarts: int = 3, reason: str = "Error") -> Json:
    """A container that has come to an end and waits for the next start."""
    last = {"terminated": {"exitCode": code, "message": message, "reason": reason}}
    return waiting("CrashLoopBackOff", "back-off 5m0s", restartCount=restarts, lastState=last)


def unschedulable(message: str) -> Json:
    reason = condition("PodScheduled", "False", reason="Unschedulable", message=message)
    return {"phase": "Pending", "conditions": [reason]}


NO_GPU = unschedulable(
    "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available: "
    "2 No preemption victims found for incoming pod."
)
LOADING = container({"running": {"startedAt": "2026-12-01T08:00:00Z"}}, started=False)
SILENT = container({"running": {"startedAt": "2026-12-01T08:00:00Z"}}, started=True)
CREATING = waiting("ContainerCreating")


def pod(role: str, status: Json, name: str = "", revision: str = "r1", **metadata: Any) -> Json:
    labels = {
        "app.kubernetes.io/managed-by": "mmdisagg-operator",
        "mmdisagg.io/deployment": "demo",
        "mmdisagg.io/role": role,
        **({"mmdisagg.io/revision": revision} if role != "router" else {}),
    }
    return {
        "apiVersion": POD.api_version,
        "kind": POD.name,
        "metadata": {"name": name or f"demo-{role}-1", "namespace": "ns", "labels": labels, **metadata},
        "spec": {},
        "status": status,
    }


def counts(replicas: int, updated: int | None = None, available: int | None = None) -> Json:
    """A Deployment's status once its controller has seen the last change."""
    return {
        "observedGeneration": 10**6,
        "replicas": replicas,
        "updatedReplicas": replicas if updated is None else updated,
        "availableReplicas": replicas if available is None else available,
        "readyReplicas": replicas if available is None else available,
    }


def run_everything(api, status: Json = READY) -> None:
    """Do what the Deployment controller and kubelets do: every Deployment has its pods, all in `status`."""
    for workload in api.all(DEPLOYMENT):
        role = workload["metadata"]["labels"]["mmdisagg.io/role"]
        labels = workload["spec"]["template"]["metadata"]["labels"]
        for number in range(workload["spec"]["replicas"]):
            name = f"demo-{role}-{number}-{len(api.log)}"
            made = pod(role, status, name, labels.get("mmdisagg.io/revision", ""))
            api.add(made)
        set_counts(api, role, counts(workload["spec"]["replicas"]))


def set_counts(api, role: str, status: Json) -> None:
    def change(workload: Json) -> None:
        workload["status"] = status

    api.change(DEPLOYMENT, f"demo-{role}", change, "kube-controller-manager")


def set_status(api, name: str, status: Json) -> None:
    def change(one: Json) -> None:
        one["status"] = status

    api.change(POD, name, change, "kubelet")
