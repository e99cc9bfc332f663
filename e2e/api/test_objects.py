"""Children on a real API server: made, owned, repaired, pruned, collected, and left alone at rest."""

import itertools
import json
import os
import time

import pytest
from documents import document, with_volume
from kube import (
    ACCOUNT,
    CHILDREN,
    CLAIM,
    DEPLOYMENT,
    MERGE,
    OURS,
    POD,
    RESOURCE,
    SECRET,
    SERVICE,
    Deployed,
    until,
)
from operators import RESYNC_SECONDS
from pods import READY

from mmdisagg_operator.api import Topology
from mmdisagg_operator.drift import drifted, owned_fields
from mmdisagg_operator.plan.objects import MANAGER

REST_SECONDS = float(os.environ.get("MMDISAGG_REST_SECONDS", "60"))


def owned(live):
    return (owned_fields(live, MANAGER) or {}).get("f:spec", {})


def all_true(deployed):
    conditions = deployed.status().get("conditions", ())
    return bool(conditions) and {c["status"] for c in conditions} == {"True"}


def serve(deployed):
    """Play the kubelet until every condition is True."""

    def settled():
        deployed.set_pods(READY)
        return all_true(deployed)

    until("all conditions True", settled)


@pytest.mark.parametrize("topology", Topology)
def test_a_resource_becomes_objects_and_serves_at_last(operator, deployed, topology):
    deployed.wish(document(topology, {"decode": {"replicas": 2}}))
    deployed.is_made(roles=1 + len(roles_of(topology)))
    serve(deployed)
    counts = {"desired": 2, "ready": 2, "updated": 2, "summary": "2/2"}
    until("the count of updated pods", lambda: deployed.status()["roles"]["decode"] == counts)
    status = deployed.status()
    assert status["revision"]
    assert {c["observedGeneration"] for c in status["conditions"]} == {1}


def roles_of(topology):
    return document(topology)["spec"].keys() & {"encode", "prefill", "decode"}


def test_children_are_owned_and_carry_no_finalizers_or_annotations_of_kopf(operator, deployed):
    deployed.wish(with_volume())
    deployed.is_made()
    uid = deployed.resource()["metadata"]["uid"]
    for kind in OURS:
        for live in deployed.kube.list(kind, deployed.namespace):
            if "mmdisagg.io/deployment" in live["metadata"].get("labels", {}):
                assert [o["uid"] for o in live["metadata"]["ownerReferences"]] == [uid]
            if kind is not CLAIM:
                assert "finalizers" not in live["metadata"], (kind.name, live["metadata"]["name"])
            assert "kopf" not in str(live["metadata"]), (kind.name, live["metadata"]["name"])


def is_at_rest(operator, deployed):
    """Wait until the shared operator has nothing to do: namespaces of other tests that go are work, too."""
    until("other tests' ends", lambda: deployed.kube.test_namespaces() == {deployed.namespace}, 120)
    operator.is_quiet(3.0)


def test_at_rest_there_is_no_request_that_changes_anything(operator, deployed):
    change = {
        "decode": {
            "resources": {"limits": {"memory": "1024Mi", "cpu": "1000m"}},
            "scheduling": {
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "topologySpreadConstraints": [
                    {
                        "maxSkew": 1,
                        "topologyKey": "zone",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": {"a": "b"}},
                    }
                ],
                "affinity": {
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"topologyKey": "host", "labelSelector": {"matchLabels": {"a": "b"}}}
                        ]
                    }
                },
            },
            "volumes": [
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
            ],
            "volumeMounts": [{"name": "token", "mountPath": "/token", "readOnly": True}],
            "podSecurityContext": {"fsGroup": 2000},
            "env": [{"name": "EMPTY", "value": ""}],
        },
        "model": {"tokenSecretRef": {"name": "absent", "key": "token"}},
    }
    deployed.wish(document(change=change))
    other = Deployed(deployed.kube, deployed.namespace, "other")
    other.wish(document(Topology.PD))
    deployed.is_made(roles=6)
    until("other's status", lambda: other.status().get("observedGeneration") == 1)
    serve(other)
    is_at_rest(operator, deployed)
    before, rounds = deployed.kube.writes(), operator.metric("mmdisagg_operator_reconciles_total")
    time.sleep(REST_SECONDS)
    after = deployed.kube.writes()
    looked = operator.metric("mmdisagg_operator_reconciles_total") - rounds
    changed = {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)}
    assert changed == {}
    events = deployed.kube.request("GET", f"/api/v1/namespaces/{deployed.namespace}/events").json()["items"]
    reporters = {event["source"].get("component") or event["reportingComponent"] for event in events}
    assert not {reporter for reporter in reporters if "kopf" in reporter or "mmdisagg" in reporter}
    assert looked >= 2 * 3 * REST_SECONDS / 60
    assert RESYNC_SECONDS * 3 < 60


def test_another_operator_process_takes_over_without_a_write(start, deployed):
    first = start().wait_until_it_leads()
    deployed.wish(document())
    deployed.is_made()
    first.is_quiet()
    assert first.writes() > 20
    first.end()
    second = start().wait_until_it_leads()
    second.is_quiet(2.0)
    assert second.metric("mmdisagg_operator_reconciles_total") >= 1
    assert second.writes() == 0


def test_applying_the_resource_again_changes_nothing(operator, deployed):
    """Server-side apply by kubectl: the defaults that the CRD fills in are no difference."""
    made = document(change={"decode": {"replicas": 2}})
    done = deployed.apply(made)
    assert done.returncode == 0, done.stderr
    deployed.is_made()
    is_at_rest(operator, deployed)
    before, writes = deployed.resource()["metadata"], operator.writes()
    done = deployed.apply(made)
    assert done.returncode == 0, done.stderr
    operator.is_quiet(2.0)
    after = deployed.resource()["metadata"]
    assert (after["generation"], after["resourceVersion"]) == (1, before["resourceVersion"])
    assert operator.writes() == writes


def test_two_who_apply_the_resource_are_told_of_their_conflict(operator, deployed):
    assert deployed.apply(document(change={"decode": {"replicas": 2}})).returncode == 0
    deployed.is_made()
    others = document(change={"decode": {"replicas": 3}})
    done = deployed.apply(others, "--field-manager=other")
    assert done.returncode != 0
    assert ".spec.decode.replicas" in done.stderr
    assert deployed.apply(others, "--field-manager=other", "--force-conflicts").returncode == 0
    until("three", lambda: deployed.workload("decode")["spec"]["replicas"] == 3)


MEDDLING = {
    "patch": ("patch", "deployment", "demo-decode", "--field-manager=other", "--patch-file=/dev/stdin"),
    "server-side apply": ("apply", "--server-side", "--force-conflicts", "--field-manager=other", "-f", "-"),
}


@pytest.mark.parametrize("words", MEDDLING.values(), ids=MEDDLING)
def test_another_field_manager_keeps_what_is_not_ours_and_loses_what_is(operator, deployed, words):
    deployed.wish(document())
    deployed.is_made()
    version = deployed.workload("decode")["metadata"]["resourceVersion"]
    container = {"name": "engine", "image": "evil:1"}
    meddled = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "demo-decode", "annotations": {"kept": "yes"}},
        "spec": {"minReadySeconds": 3, "template": {"spec": {"containers": [container]}}},
    }
    done = deployed.kube.kubectl(*words, "-n", deployed.namespace, manifest=meddled)
    assert done.returncode == 0, done.stderr
    seen = [event["object"]["spec"]["template"]["spec"] for event in history(deployed, version)]
    assert "evil:1" in [pod["containers"][0]["image"] for pod in seen]

    def healed():
        spec = deployed.workload("decode")["spec"]
        return spec["template"]["spec"]["containers"][0]["image"] == "worker:1"

    until("the repair", healed)
    operator.is_quiet(2.0)
    live = deployed.workload("decode")
    assert (live["spec"]["minReadySeconds"], live["metadata"]["annotations"]["kept"]) == (3, "yes")


def test_the_order_of_variables_follows_the_spec(operator, deployed):
    """A variable may refer to those before it, and a list with keys keeps its old order unless it is applied."""
    first, second = {"name": "FIRST", "value": "1"}, {"name": "SECOND", "value": "$(FIRST)2"}

    def order():
        env = deployed.workload("decode")["spec"]["template"]["spec"]["containers"][0]["env"]
        return [one["name"] for one in env if one["name"] in ("FIRST", "SECOND")]

    deployed.wish(document(change={"decode": {"env": [second, first]}}))
    deployed.is_made()
    assert order() == ["SECOND", "FIRST"]
    deployed.wish(document(change={"decode": {"env": [first, second]}}))
    until("the new order", lambda: order() == ["FIRST", "SECOND"])
    is_at_rest(operator, deployed)
    writes = operator.writes()
    operator.rounds(1, 2 * RESYNC_SECONDS)
    assert operator.writes() == writes


@pytest.mark.case("c16")
@pytest.mark.parametrize("kind", CHILDREN, ids=lambda kind: kind.name)
def test_what_somebody_deletes_is_made_again(operator, deployed, kind):
    deployed.wish(with_volume())
    deployed.is_made()
    victim = next(
        one for one in deployed.kube.list(kind, deployed.namespace) if one["metadata"].get("ownerReferences")
    )
    name, uid = victim["metadata"]["name"], victim["metadata"]["uid"]
    deployed.kube.delete(kind, deployed.namespace, name)

    def again():
        found = deployed.kube.get(kind, deployed.namespace, name)
        return found is not None and found["metadata"]["uid"] != uid

    until(f"{kind.name} {name}", again)


def test_drift_is_repaired_and_what_is_not_ours_is_left(operator, deployed):
    deployed.wish(document(change={"decode": {"replicas": 2}}))
    deployed.is_made()
    container = {"name": "engine", "image": "evil:1", "args": ["--evil"]}
    meddled = {
        "metadata": {"labels": {"mine": "x", "mmdisagg.io/role": "encode"}},
        "spec": {"replicas": 5, "minReadySeconds": 3, "template": {"spec": {"containers": [container]}}},
    }
    deployed.kube.patch(DEPLOYMENT, deployed.namespace, "demo-decode", meddled)

    def repaired():
        live = deployed.workload("decode")
        engine = live["spec"]["template"]["spec"]["containers"][0]
        return (
            live["spec"]["replicas"] == 2
            and engine["image"] == "worker:1"
            and "--evil" not in engine["args"]
            and live["metadata"]["labels"]["mmdisagg.io/role"] == "decode"
        )

    until("the repair", repaired)
    live = deployed.workload("decode")
    assert (live["spec"]["minReadySeconds"], live["metadata"]["labels"]["mine"]) == (3, "x")
    deployed.kube.patch(SERVICE, deployed.namespace, "demo-router", {"spec": {"selector": {"evil": "x"}}})
    until(
        "the selector",
        lambda: (
            "evil" not in deployed.kube.get(SERVICE, deployed.namespace, "demo-router")["spec"]["selector"]
        ),
    )


def test_what_the_spec_gives_up_goes(operator, deployed):
    change = {"decode": {"scheduling": {"nodeSelector": {"pool": "gpu"}}, "labels": {"team": "x"}}}
    deployed.wish(document(change=change))
    deployed.is_made()
    deployed.wish(document(change={"rollout": {"strategy": "Recreate"}}))

    def given_up():
        spec = deployed.workload("decode")["spec"]
        return (
            not spec["template"]["spec"].get("nodeSelector")
            and "team" not in spec["template"]["metadata"]["labels"]
            and spec["strategy"] == {"type": "Recreate"}
        )

    until("the change", given_up)
    deployed.wish(document())
    until(
        "surge",
        lambda: deployed.workload("decode")["spec"]["strategy"]["type"] == "RollingUpdate",
        seconds=20,
    )


@pytest.mark.case("c16")
def test_removing_a_role_prunes_it_and_adding_it_brings_it_back(operator, deployed):
    deployed.wish(with_volume())
    deployed.is_made()
    router = deployed.workload("router")
    deployed.wish(document(Topology.EP_D))

    def pruned():
        left = {name for kind in CHILDREN for name in deployed.names(kind)}
        return not any("encode" in name or "embeddings" in name for name in left)

    until("the pruning", pruned)
    until("the status", lambda: "encode" not in deployed.status()["roles"])
    still = deployed.workload("router")["metadata"]
    assert (still["uid"], still["generation"]) == (router["metadata"]["uid"], 1), "the router was restarted"
    deployed.wish(document())
    deployed.is_made()
    assert deployed.workload("router")["metadata"]["generation"] == 1


def test_the_stage_token_is_made_once(operator, deployed):
    deployed.wish(document())
    deployed.is_made()
    before = deployed.kube.get(SECRET, deployed.namespace, "demo-stage-token")
    deployed.wish(document(change={"engine": {"maxModelLen": 8192}}))
    until("the change", lambda: "8192" in str(deployed.workload("decode")["spec"]))
    operator.is_quiet()
    after = deployed.kube.get(SECRET, deployed.namespace, "demo-stage-token")
    assert (after["data"], after["metadata"]["resourceVersion"]) == (
        before["data"],
        before["metadata"]["resourceVersion"],
    )
    assert after["immutable"] is True


def test_everything_is_collected_with_the_resource(operator, deployed):
    deployed.wish(document())
    deployed.is_made()
    deployed.kube.delete(RESOURCE, deployed.namespace, "demo")

    def empty():
        return not {
            one["metadata"]["name"]
            for kind in (*OURS, POD)
            for one in deployed.kube.list(kind, deployed.namespace)
            if one["metadata"]["name"].startswith("demo")
        }

    until("the garbage collector", empty, seconds=90)
    deployed.wish(document())
    deployed.is_made()


def test_a_namespace_can_be_deleted_while_no_operator_runs(start, deployed):
    running = start().wait_until_it_leads()
    deployed.wish(document())
    deployed.is_made()
    running.end()
    deployed.kube.delete_namespace(deployed.namespace)
    until("the namespace's end", lambda: not deployed.kube.has_namespace(deployed.namespace), seconds=120)


@pytest.mark.case("c14")
def test_replicas_are_handed_over_without_a_dip(operator, deployed):
    deployed.wish(document(change={"decode": {"replicas": 4}}))
    deployed.is_made()
    until("four", lambda: deployed.workload("decode")["spec"]["replicas"] == 4)
    version = deployed.workload("decode")["metadata"]["resourceVersion"]
    deployed.wish(document())
    until("the handover", lambda: "f:replicas" not in owned(deployed.workload("decode")))
    assert deployed.workload("decode")["spec"]["replicas"] == 4
    deployed.kube.kubectl("scale", "deployment", "demo-decode", "--replicas=6", "-n", deployed.namespace)
    operator.is_quiet(2.0)
    assert deployed.workload("decode")["spec"]["replicas"] == 6
    assert {event["object"]["spec"]["replicas"] for event in history(deployed, version)} == {4, 6}
    deployed.wish(document(change={"decode": {"replicas": 3}}))
    until("the spec's number", lambda: deployed.workload("decode")["spec"]["replicas"] == 3)


@pytest.mark.case("c14")
def test_an_autoscaler_has_the_number_and_the_operator_leaves_it_alone(operator, deployed):
    """A real HorizontalPodAutoscaler and its controller.

    Without pods that run there are no metrics: the controller then keeps to the bounds alone, so these move.
    The APIs that others use for it are not there, and that is no error.
    """
    groups = {group["name"] for group in deployed.kube.request("GET", "/apis").json()["groups"]}
    assert "autoscaling" in groups
    assert not groups & {"keda.sh", "monitoring.coreos.com", "metrics.k8s.io"}
    deployed.wish(document())
    deployed.is_made()
    version = deployed.workload("decode")["metadata"]["resourceVersion"]
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "demo-decode"}
    scaler = {"metadata": {"name": "decode"}, "spec": {"scaleTargetRef": target}}
    path = f"/apis/autoscaling/v2/namespaces/{deployed.namespace}/horizontalpodautoscalers"
    scaler["spec"] |= {"minReplicas": 3, "maxReplicas": 5}
    answer = deployed.kube.request("POST", path, scaler)
    assert answer.ok, answer.text
    until("three", lambda: deployed.workload("decode")["spec"]["replicas"] == 3)
    bounds = {"spec": {"minReplicas": 1, "maxReplicas": 2}}
    assert deployed.kube.request("PATCH", f"{path}/decode", bounds, content_type=MERGE).ok
    until("two", lambda: deployed.workload("decode")["spec"]["replicas"] == 2)
    until("the status", lambda: deployed.status()["roles"]["decode"]["desired"] == 2)
    operator.rounds(2, 3 * RESYNC_SECONDS)
    numbers = [event["object"]["spec"]["replicas"] for event in history(deployed, version)]
    assert [number for number, _ in itertools.groupby(numbers)] in ([1, 3, 2], [3, 2])


def history(deployed, version):
    """Every state of the decode Deployment since a version."""
    path = DEPLOYMENT.path(deployed.namespace)
    query = {
        "watch": "true",
        "resourceVersion": version,
        "timeoutSeconds": "2",
        "fieldSelector": "metadata.name=demo-decode",
    }
    answer = deployed.kube.request("GET", path, params=query)
    return [json.loads(line) for line in answer.text.splitlines()]


def test_the_router_may_read_slices_and_nothing_else(operator, deployed, tmp_path):
    deployed.wish(document())
    deployed.is_made()
    assert "demo-router" in deployed.names(ACCOUNT)
    router = deployed.kube.as_account(deployed.namespace, "demo-router", tmp_path)
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{deployed.namespace}/endpointslices"
    labels = "mmdisagg.io/deployment=demo,mmdisagg.io/role=decode,mmdisagg.io/revision"

    def found():
        answer = router.request("GET", slices, params={"labelSelector": labels})
        return answer.status_code == 200 and len(answer.json()["items"]) == 1

    until("the slice of decode's revision", found)
    assert router.request("GET", SECRET.path(deployed.namespace, "demo-stage-token")).status_code == 403
    assert router.request("GET", POD.path(deployed.namespace)).status_code == 403


def test_drift_is_judged_on_real_managed_fields(operator, deployed):
    deployed.wish(document())
    deployed.is_made()
    live = deployed.workload("decode")
    live |= {"apiVersion": "apps/v1", "kind": "Deployment"}
    bare = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "demo-decode"}}
    assert drifted(bare, live, MANAGER)
    assert drifted(bare, live, "somebody")
