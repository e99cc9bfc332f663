"""What a user is told, for each way in which pods can be stuck."""

from contextlib import contextmanager

import pytest
from documents import document, with_volume
from kube import CLAIM, DEPLOYMENT, RESOURCE, SECRET, until, with_crd
from operators import RESYNC_SECONDS
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


def test_an_object_that_no_schema_knows_is_rejected_and_not_a_failure_for_now(operator, deployed):
    """Server-side apply answers 500 to what breaks a schema; trying that again and again would help nobody."""
    wrong = {"scheduling": {"affinity": {"nodeAffinity": {"wishful": True}}}}
    deployed.wish(document(change={"decode": wrong}))
    assert "wishful" in deployed.says("DecodeReady", "False", "Rejected")
    deployed.wish(document())
    until("the way out", lambda: deployed.said("DecodeReady")[1] != "Rejected")
    assert "demo-decode" in deployed.names(DEPLOYMENT)


def test_what_a_policy_refuses_is_made_once_the_policy_allows_it(operator, deployed):
    """Given an admission policy of the cluster, which is no fault of the spec."""
    kube, here = deployed.kube, deployed.namespace
    admission, name = "/apis/admissionregistration.k8s.io/v1", f"no-decode-{here}"
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["deployments"],
    }
    only = {"matchLabels": {"kubernetes.io/metadata.name": here}}
    policy = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": only},
        "validations": [
            {"expression": "!object.metadata.name.endsWith('decode')", "message": "no decode here"}
        ],
    }
    policies, bindings = (f"{admission}/validatingadmissionpolic{end}" for end in ("ies", "ybindings"))
    metadata = {"metadata": {"name": name}}
    assert kube.request("POST", policies, {**metadata, "spec": policy}).ok
    binding = {"policyName": name, "validationActions": ["Deny"]}
    assert kube.request("POST", bindings, {**metadata, "spec": binding}).ok
    probe = {
        "metadata": {"name": "probe-decode"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "a", "image": "a"}]},
            },
        },
    }

    def denied():
        answer = kube.request("POST", DEPLOYMENT.path(here), probe, params={"dryRun": "All"})
        return "no decode here" in answer.text

    try:
        until("the policy", denied)
        deployed.wish(document())
        assert "no decode here" in deployed.says("DecodeReady", "False", "Rejected")
    finally:
        for path in (bindings, policies):
            kube.request("DELETE", f"{path}/{name}")
    until("the policy's end", lambda: not denied())
    until("the Deployment", lambda: "demo-decode" in deployed.names(DEPLOYMENT), 3 * RESYNC_SECONDS)
    until("the status", lambda: deployed.said("Progressing") == ("True", "RollingOut"))


@pytest.mark.parametrize(
    ("change", "evidence"),
    [({"storageClassName": "faster"}, "immutable"), ({"capacity": "40Gi"}, "resized")],
    ids=["class", "capacity"],
)
def test_a_claim_that_cannot_be_changed_is_told_and_made_anew_when_deleted(
    operator, deployed, change, evidence
):
    deployed.wish(with_volume(change={"handoff": {"sharedVolume": {"storageClassName": "fast"}}}))
    deployed.is_made()
    claim = deployed.kube.get(CLAIM, deployed.namespace, "demo-embeddings")
    bound = {"status": {"phase": "Bound", "capacity": {"storage": "20Gi"}}}
    deployed.kube.patch(CLAIM, deployed.namespace, "demo-embeddings", bound, "status")
    wanted = {"storageClassName": "fast", **change}
    deployed.wish(with_volume(change={"handoff": {"sharedVolume": wanted}}))
    message = deployed.says("Progressing", "False", "Rejected")
    assert evidence in message
    assert "kubectl delete pvc demo-embeddings" in message
    deployed.kube.delete(CLAIM, deployed.namespace, "demo-embeddings")

    def again():
        live = deployed.kube.get(CLAIM, deployed.namespace, "demo-embeddings")
        return live is not None and live["metadata"]["uid"] != claim["metadata"]["uid"]

    until("another claim", again)
    until("the status", lambda: deployed.said("Progressing")[0] == "True")


def test_what_the_crd_lets_through_is_told_with_its_field(operator, deployed):
    """A NUL is valid JSON, and no process can be started with one."""
    deployed.wish(document(change={"decode": {"extraArgs": ["--dtype", "a\0b"]}}))
    message = deployed.says("Available", "False", "InvalidSpec")
    assert message == "spec.decode.extraArgs[1]: must not contain a NUL character"
    assert deployed.names(DEPLOYMENT) == set()
    deployed.wish(document())
    deployed.is_made()


def test_what_an_older_crd_let_through_is_told_with_its_field(operator, deployed):
    """Given a resource that was stored before the CRD had the rule: its status can be written all the same."""
    with lenient_crd(deployed.kube):
        deployed.wish(document(change={"media": {"limits": {"bytes": "99999999999T"}}}))
    message = deployed.says("Available", "False", "InvalidSpec")
    assert "spec.media.limits.bytes" in message
    assert "at most 1024Ti" in message
    deployed.wish(document())
    deployed.is_made()


@contextmanager
def lenient_crd(kube):
    """Have a CRD without its own rules."""

    def without_rules(node):
        if isinstance(node, list):
            return [without_rules(item) for item in node]
        if not isinstance(node, dict):
            return node
        kept = {key: value for key, value in node.items() if key != "x-kubernetes-validations"}
        return {key: without_rules(value) for key, value in kept.items()}

    def taken():
        made = document(change={"media": {"limits": {"bytes": "1025Ti"}}})
        return kube.request("POST", RESOURCE.path("default"), made, params={"dryRun": "All"}).ok

    with_crd(kube, without_rules)
    try:
        until("the CRD without rules", taken)
        yield
    finally:
        with_crd(kube)
    until("the CRD's rules", lambda: not taken())


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
