"""Pods that a real scheduler finds no place for."""

import pytest
from documents import document
from kube import MERGE, POD, Deployed, Kube, until, with_crd
from operators import Operator
from pods import READY

from mmdisagg_operator.api import Topology
from testbed import ApiServer

NODE = "/api/v1/nodes"


@pytest.fixture(scope="module")
def kube(tmp_path_factory):
    """An API server with a scheduler, and an operator."""
    with ApiServer(scheduler=True) as server:
        made = with_crd(Kube(server.kubeconfig, server.kubectl))
        running = Operator(server.kubeconfig, tmp_path_factory.mktemp("scheduling") / "log").start()
        running.wait_until_it_leads()
        yield made
        running.end()


@pytest.fixture
def heartbeat(kube):
    """A node with one GPU and no kubelet, kept ready by this call: pods are bound to it, and never start."""
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "20", "nvidia.com/gpu": "1"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "a node without a kubelet"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    assert kube.request("POST", NODE, {"metadata": {"name": "gpu-node"}}).ok

    def beat():
        kube.request("PATCH", f"{NODE}/gpu-node/status", {"status": status}, content_type=MERGE)
        kube.request("PATCH", f"{NODE}/gpu-node", {"spec": {"taints": []}}, content_type=MERGE)

    beat()
    yield beat
    kube.request("DELETE", f"{NODE}/gpu-node")
    # Nobody but a kubelet ends pods that are bound to a node.
    bound = kube.request("GET", "/api/v1/pods", params={"fieldSelector": "spec.nodeName=gpu-node"})
    for pod in bound.json()["items"]:
        kube.delete(POD, pod["metadata"]["namespace"], pod["metadata"]["name"], gracePeriodSeconds=0)


@pytest.mark.case("c08")
def test_gpus_that_are_taken_are_named_and_so_is_the_way_out(deployed, heartbeat):
    gpu = {"decode": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}
    deployed.wish(document(Topology.PD, gpu))

    def serving():
        heartbeat()
        deployed.set_pods(READY)
        return deployed.said("Available") == ("True", "Available")

    until("it serves", serving)
    deployed.wish(document(Topology.PD, {**gpu, "image": "worker:2"}))

    def blocked():
        heartbeat()
        return deployed.said("Progressing") == ("False", "InsufficientGPU")

    until("the shortage", blocked)
    message = deployed.condition("Progressing")["message"]
    assert "Insufficient nvidia.com/gpu" in message
    assert "spec.rollout.strategy: Recreate" in message
    assert deployed.said("Available") == ("True", "Degraded")


def test_a_cluster_without_room_is_told(deployed: Deployed):
    deployed.wish(document(Topology.PD))
    message = deployed.says("DecodeReady", "False", "Unschedulable")
    assert "no nodes available" in message or "nodes are available" in message
    assert "spec.decode.scheduling" in message
