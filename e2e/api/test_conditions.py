"""What a user is told, for each way in which pods can be stuck."""

import pytest
from documents import document
from kube import SECRET, until
from pods import LOADING, READY, ended, waiting

from mmdisagg_operator.api import Topology


def stuck(deployed, status):
    """Every pod of decode is in `status`, and the others serve."""
    deployed.wish(document(Topology.EP_D))
    deployed.is_made(roles=3)
    deployed.set_pods(READY)
    deployed.set_pods(status, "decode")


TROUBLES = [
    (waiting("ImagePullBackOff", "manifest unknown"), "ImagePullFailed", "manifest unknown"),
    (ended(1, "RuntimeError: boom"), "CrashLoop", "boom"),
    (ended(40, "model_type 'phi4'; known: Qwen2-VL, LLaVA"), "UnknownFamily", "known: Qwen2-VL, LLaVA"),
    (ended(41, "vLLM 0.31.0 is installed; install vLLM 0.32.0"), "WrongEngineVersion", "0.32.0"),
    (waiting("CreateContainerConfigError", 'secret "hub" not found'), "MissingSecret", "hub"),
]


@pytest.mark.parametrize(("status", "reason", "evidence"), TROUBLES, ids=lambda value: str(value)[:20])
def test_a_stuck_pod_is_told_with_its_evidence(operator, deployed, status, reason, evidence):
    stuck(deployed, status)
    assert evidence in deployed.says("DecodeReady", "False", reason)
    assert deployed.says("Available", "False", reason).startswith("decode: 1 of 1 pods")
    assert evidence in deployed.kube.kubectl("describe", "mmdd", "demo", "-n", deployed.namespace).stdout
    deployed.set_pods(READY, "decode")
    deployed.says("Available", "True", "Available")


@pytest.mark.case("c09")
def test_a_slow_load_is_told_and_is_no_failure(operator, deployed):
    stuck(deployed, LOADING)
    assert "60 min are allowed" in deployed.says("DecodeReady", "False", "Loading")
    deployed.says("Progressing", "True", "RollingOut")
    assert deployed.pods("decode")[0]["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_missing_secret_is_told_before_pods_are_anywhere(operator, deployed):
    deployed.wish(document(change={"model": {"tokenSecretRef": {"name": "hub", "key": "token"}}}))
    assert "kubectl create secret generic hub" in deployed.says("EncodeReady", "False", "MissingSecret")
    hub = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "data": {"token": "eA=="}}
    deployed.kube.create(SECRET, deployed.namespace, hub)
    until("the Secret is seen", lambda: deployed.said("EncodeReady")[1] != "MissingSecret")


def test_an_object_that_the_api_server_rejects_is_told_until_the_spec_changes(operator, deployed):
    deployed.wish(document(change={"decode": {"labels": {"bad label!": "x"}}}))
    assert "bad label!" in deployed.says("DecodeReady", "False", "Rejected")
    operator.is_quiet(1.5)
    deployed.wish(document())
    until("the way out", lambda: deployed.said("DecodeReady")[1] != "Rejected")


def test_a_resource_without_an_image_is_told(start, deployed):
    start("--worker-image", "").wait_until_it_leads()
    deployed.wish(document())
    assert "spec.image: required" in deployed.says("Available", "False", "InvalidSpec")


def test_a_quota_that_refuses_pods_is_told(operator, deployed):
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "1"}}}
    answer = deployed.kube.request("POST", f"/api/v1/namespaces/{deployed.namespace}/resourcequotas", quota)
    assert answer.ok
    path = f"/api/v1/namespaces/{deployed.namespace}/resourcequotas/none"
    until("the quota", lambda: "used" in deployed.kube.request("GET", path).json().get("status", {}))
    deployed.wish(document())
    until(
        "a refusal",
        lambda: any(deployed.said(f"{r}Ready")[1] == "PodsRefused" for r in ("Encode", "Decode", "Router")),
    )
    assert "quota" in deployed.condition("Available")["message"]
