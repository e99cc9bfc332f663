"""Rounds against an API server in memory: what is made, repaired, pruned, left alone, and said."""

import contextlib
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import kopf
import pytest
from documents import with_volume
from emulator import ApiServer, refusal, serving
from pods import (
    LOADING,
    NO_GPU,
    READY,
    condition,
    counts,
    ended,
    pod,
    run_everything,
    set_counts,
    set_status,
    waiting,
)

from mmdisagg_operator.api import Topology
from mmdisagg_operator.apply import HANDOVER_MANAGER
from mmdisagg_operator.cluster import Cluster
from mmdisagg_operator.errors import ApiError, UnreachableError
from mmdisagg_operator.kinds import CHILDREN, DEPLOYMENT, POD, RESOURCE, SECRET
from mmdisagg_operator.plan.objects import MANAGER, Images
from mmdisagg_operator.reasons import Reason
from mmdisagg_operator.reconcile import SECRET_POLL_SECONDS, Reconciler

KEY = ("ns", "demo")
SERVICE, CONFIG_MAP, ACCOUNT, CLAIM, ROLE, BINDING, BUDGET, POLICY = CHILDREN[1:]


@dataclass
class World:
    """An API server, a reconciler, and a clock that moves with every round."""

    api: ApiServer
    reconciler: Reconciler
    tokens: list[str] = field(default_factory=list)

    async def round(self):
        return await self.reconciler.reconcile(KEY)

    async def settle(self, rounds=3):
        """Work until nothing is written any more."""
        for _ in range(rounds):
            await self.round()
        self.api.writes.clear()

    def wish(self, change=None, topology=Topology.E_P_D):
        made = with_volume(topology, change)
        if self.api.find(RESOURCE, "demo") is None:
            made["metadata"] |= {"namespace": "ns"}
            self.api.add(made)
        else:
            self.api.change(RESOURCE, "demo", lambda one: one.update(spec=made["spec"]))

    def status(self):
        return self.api.find(RESOURCE, "demo")["status"]

    def said(self, kind):
        found = next(c for c in self.status()["conditions"] if c["type"] == kind)
        return found["status"], found["reason"]

    def message(self, kind):
        return next(c for c in self.status()["conditions"] if c["type"] == kind)["message"]

    def workload(self, role):
        return self.api.find(DEPLOYMENT, f"demo-{role}")

    def replicas(self, role):
        return self.workload(role)["spec"]["replicas"]

    def restart(self):
        """Another operator process: it remembers nothing."""
        old = self.reconciler
        self.reconciler = Reconciler(old.cluster, old.images, old.now, old.new_token)


@asynccontextmanager
async def world(api=None, images=None):
    api = api or ApiServer()
    now = [datetime(2026, 12, 1, 12, tzinfo=UTC)]
    tokens = []

    def tick():
        now[0] += timedelta(seconds=1)
        return now[0]

    def new_token():
        tokens.append(f"{len(tokens):064d}")
        return tokens[-1]

    async with serving(api) as (cluster, _):
        reconciler = Reconciler(cluster, images or Images("worker:1", "router:1"), tick, new_token)
        yield World(api, reconciler, tokens)


def manager_of(live, path):
    return [
        entry["manager"] for entry in live["metadata"]["managedFields"] if _reaches(entry["fieldsV1"], path)
    ]


def _reaches(fields, path):
    for part in path:
        if f"f:{part}" not in fields:
            return False
        fields = fields[f"f:{part}"]
    return True


async def test_a_resource_becomes_its_objects():
    async with world() as it:
        it.wish()
        await it.round()
        assert it.api.names(DEPLOYMENT) == {"demo-encode", "demo-prefill", "demo-decode", "demo-router"}
        assert it.api.names(SECRET) == {"demo-stage-token"}
        assert {kind.name for kind in CHILDREN if it.api.names(kind)} == {kind.name for kind in CHILDREN}
        for kind in CHILDREN:
            for live in it.api.all(kind):
                assert (
                    live["metadata"]["ownerReferences"][0]["uid"]
                    == it.api.find(RESOURCE, "demo")["metadata"]["uid"]
                )
        assert it.said("Available") == ("False", Reason.STARTING)


async def test_everything_serves_at_last():
    async with world() as it:
        it.wish({"decode": {"replicas": 2}})
        await it.round()
        run_everything(it.api)
        await it.round()
        assert {c["status"] for c in it.status()["conditions"]} == {"True"}
        assert it.status()["roles"]["decode"] == {"desired": 2, "ready": 2, "updated": 2, "summary": "2/2"}
        assert it.status()["url"] == "http://demo-router.ns.svc:8000"


async def test_at_rest_nothing_is_written():
    async with world() as it:
        it.wish()
        await it.round()
        run_everything(it.api)
        await it.settle()
        for _ in range(3):
            await it.round()
        it.restart()
        await it.round()
        assert it.api.writes == []


@pytest.mark.parametrize(
    "status", [LOADING, NO_GPU, ended(40, "known: Qwen2-VL"), waiting("ErrImagePull", "x")]
)
async def test_nothing_is_written_while_a_problem_lasts(status):
    async with world() as it:
        it.wish()
        await it.round()
        run_everything(it.api, status)
        await it.settle()
        await it.round()
        assert it.api.writes == []


async def test_neither_finalizers_nor_annotations_are_left_on_objects():
    async with world() as it:
        it.wish()
        await it.settle()
        for kind in (RESOURCE, SECRET, *CHILDREN):
            for live in it.api.all(kind):
                assert "finalizers" not in live["metadata"]
                assert "annotations" not in live["metadata"]


@pytest.mark.case("c16")
@pytest.mark.parametrize("kind", CHILDREN, ids=lambda kind: kind.name)
async def test_what_somebody_deletes_is_made_again(kind):
    async with world() as it:
        it.wish()
        await it.settle()
        names = it.api.names(kind)
        victim = sorted(names)[0]
        it.api.delete(kind, victim)
        await it.round()
        assert it.api.names(kind) == names
        assert len(it.api.writes) <= 2


async def test_drift_is_repaired_and_what_is_not_ours_is_left():
    async with world() as it:
        it.wish({"decode": {"replicas": 2}})
        await it.settle()

        def meddle(live):
            live["spec"]["replicas"] = 9
            live["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1"
            live["spec"]["minReadySeconds"] = 3
            live["metadata"]["labels"]["mine"] = "x"

        it.api.change(DEPLOYMENT, "demo-decode", meddle)
        await it.round()
        live = it.workload("decode")
        assert live["spec"]["replicas"] == 2
        assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "worker:1"
        assert (live["spec"]["minReadySeconds"], live["metadata"]["labels"]["mine"]) == (3, "x")
        assert it.api.writes == ["PATCH /apis/apps/v1/namespaces/ns/deployments/demo-decode"]


async def test_a_label_that_somebody_removes_comes_back():
    async with world() as it:
        it.wish()
        await it.settle()
        it.api.change(SERVICE, "demo-router", lambda live: live["metadata"]["labels"].clear())
        await it.round()
        assert it.api.find(SERVICE, "demo-router")["metadata"]["labels"]["mmdisagg.io/deployment"] == "demo"


async def test_a_change_of_the_spec_reaches_the_pods_and_what_it_gives_up_goes():
    async with world() as it:
        it.wish({"decode": {"scheduling": {"nodeSelector": {"pool": "gpu"}}}})
        await it.settle()
        it.wish({"engine": {"maxModelLen": 8192}})
        await it.round()
        spec = it.workload("decode")["spec"]["template"]["spec"]
        assert "8192" in spec["containers"][0]["args"]
        assert "nodeSelector" not in spec


@pytest.mark.case("c16")
async def test_removing_a_role_prunes_it_and_switches_the_topology():
    async with world() as it:
        it.wish()
        await it.settle()
        router = it.workload("router")
        it.wish(topology=Topology.EP_D)
        await it.settle()
        assert it.api.names(DEPLOYMENT) == {"demo-prefill", "demo-decode", "demo-router"}
        for kind in CHILDREN:
            assert not {name for name in it.api.names(kind) if "encode" in name or "embeddings" in name}
        assert it.workload("router") == router
        env = it.workload("decode")["spec"]["template"]["spec"]["containers"][0]["env"]
        assert {"name": "MMDISAGG_TOPOLOGY", "value": "EP/D"} in env
        assert "EncodeReady" not in {c["type"] for c in it.status()["conditions"]}
        assert "encode" not in it.status()["roles"]
        it.wish()
        await it.round()
        assert "demo-encode" in it.api.names(DEPLOYMENT)
        assert it.said("EncodeReady")[0] == "False"


async def test_only_own_children_are_pruned():
    async with world() as it:
        it.wish()
        await it.settle()
        stray = it.api.find(CONFIG_MAP, "demo-plan")
        del stray["metadata"]["managedFields"]
        stray["metadata"] |= {"name": "theirs", "ownerReferences": []}
        it.api.add(stray)
        await it.round()
        assert "theirs" in it.api.names(CONFIG_MAP)


async def test_an_old_revision_can_be_found_as_long_as_it_has_pods():
    async with world() as it:
        it.wish()
        await it.settle()
        old = {name for name in it.api.names(SERVICE) if name.count("-") == 2}
        revision = it.workload("decode")["spec"]["template"]["metadata"]["labels"]["mmdisagg.io/revision"]
        it.api.add(pod("decode", READY, "old-one", revision))
        it.wish({"engine": {"maxModelLen": 8192}})
        await it.settle()
        assert old < {name for name in it.api.names(SERVICE) if name.count("-") == 2}
        it.api.delete(POD, "old-one")
        await it.settle()
        assert not old & it.api.names(SERVICE)


@pytest.mark.parametrize("label", ["Not_A.Name", "zz", ""])
async def test_a_pod_with_a_made_up_revision_gets_no_service(label):
    async with world() as it:
        it.wish()
        await it.settle()
        before = it.api.names(SERVICE)
        it.api.add(pod("decode", READY, "stray", label))
        assert not (await it.round()).failed
        assert it.api.names(SERVICE) == before


async def test_the_stage_token_is_made_once_and_never_changed():
    async with world() as it:
        it.wish()
        await it.settle()
        before = it.api.find(SECRET, "demo-stage-token")
        it.wish({"engine": {"maxModelLen": 8192}})
        it.restart()
        await it.settle()
        assert it.api.find(SECRET, "demo-stage-token") == before
        assert f"{0:064d}" not in str([it.api.all(kind) for kind in CHILDREN])


async def test_a_lost_stage_token_is_replaced_in_every_pod():
    async with world() as it:
        it.wish()
        await it.settle()
        marks = [
            it.workload(role)["spec"]["template"]["metadata"]["annotations"] for role in ("decode", "router")
        ]
        it.api.delete(SECRET, "demo-stage-token")
        await it.settle()
        again = [
            it.workload(role)["spec"]["template"]["metadata"]["annotations"] for role in ("decode", "router")
        ]
        assert it.api.names(SECRET) == {"demo-stage-token"}
        assert again[0] == again[1] != marks[0] == marks[1]


async def test_a_secret_that_is_no_stage_token_is_not_overwritten():
    async with world() as it:
        it.wish()
        secret = {"apiVersion": "v1", "kind": "Secret", "data": {"token": "c2hvcnQ="}}
        it.api.add({**secret, "metadata": {"name": "demo-stage-token", "namespace": "ns"}})
        assert (await it.round()).failed
        assert it.said("Progressing") == ("False", Reason.NAME_CONFLICT)
        assert "demo-stage-token" in it.message("Available")
        assert it.api.names(DEPLOYMENT) == set()


@pytest.mark.case("c14")
async def test_a_role_without_replicas_starts_with_one_and_follows_whoever_scales_it():
    async with world() as it:
        it.wish()
        await it.settle()
        assert it.replicas("decode") == 1
        it.api.change(DEPLOYMENT, "demo-decode", lambda live: live["spec"].update(replicas=4), "hpa")
        await it.settle()
        assert it.replicas("decode") == 4
        assert it.status()["roles"]["decode"]["desired"] == 4
        await it.round()
        assert it.api.writes == []


@pytest.mark.case("c14")
async def test_turning_autoscaling_on_at_four_replicas_never_dips():
    async with world() as it:
        it.wish({"decode": {"replicas": 4}})
        await it.settle()
        it.wish()
        await it.settle()
        seen = [
            event["object"]["spec"]["replicas"]
            for _, kind, event in it.api.log
            if kind is DEPLOYMENT and event["object"]["metadata"]["name"] == "demo-decode"
        ]
        assert set(seen) == {4}
        assert manager_of(it.workload("decode"), ["spec", "replicas"]) == [HANDOVER_MANAGER]
        it.api.change(DEPLOYMENT, "demo-decode", lambda live: live["spec"].update(replicas=6), "hpa")
        await it.settle()
        assert it.replicas("decode") == 6
        assert manager_of(it.workload("decode"), ["spec", "replicas"]) == ["hpa"]


@pytest.mark.case("c14")
async def test_a_number_in_the_spec_takes_the_replicas_back():
    async with world() as it:
        it.wish()
        await it.settle()
        it.api.change(DEPLOYMENT, "demo-decode", lambda live: live["spec"].update(replicas=4), "hpa")
        it.wish({"decode": {"replicas": 3}})
        await it.settle()
        assert it.replicas("decode") == 3
        assert manager_of(it.workload("decode"), ["spec", "replicas"]) == [MANAGER]


@pytest.mark.case("c14")
async def test_somebody_who_scales_during_the_handover_wins(monkeypatch):
    async with world() as it:
        it.wish({"decode": {"replicas": 4}})
        await it.settle()
        it.wish()
        real = Cluster.apply

        async def scaled_first(cluster, manifest, **more):
            if more.get("manager") == HANDOVER_MANAGER:
                it.api.change(DEPLOYMENT, "demo-decode", lambda live: live["spec"].update(replicas=6), "hpa")
            return await real(cluster, manifest, **more)

        monkeypatch.setattr(Cluster, "apply", scaled_first)
        await it.round()
        assert it.replicas("decode") == 6


@pytest.mark.case("c14")
async def test_an_optional_api_that_is_absent_is_no_error():
    async with world(ApiServer(absent=frozenset({"poddisruptionbudgets", "networkpolicies"}))) as it:
        it.wish()
        result = await it.round()
        run_everything(it.api)
        await it.settle()
        await it.round()
        assert not result.failed
        assert it.said("Available") == ("True", Reason.AVAILABLE)
        assert it.api.writes == []


REASONS = [
    (NO_GPU, Reason.INSUFFICIENT_GPU, "Insufficient nvidia.com/gpu"),
    (waiting("ImagePullBackOff", "manifest unknown"), Reason.IMAGE_PULL_FAILED, "manifest unknown"),
    (ended(1, "RuntimeError: boom"), Reason.CRASH_LOOP, "boom"),
    (LOADING, Reason.LOADING, "min are allowed"),
    (ended(40, "known: Qwen2-VL, LLaVA"), Reason.UNKNOWN_FAMILY, "known: Qwen2-VL, LLaVA"),
    (ended(41, "vLLM 0.31.0 is installed; install vLLM 0.32.0"), Reason.WRONG_ENGINE_VERSION, "0.32.0"),
    (waiting("CreateContainerConfigError", 'secret "hub" not found'), Reason.MISSING_SECRET, '"hub"'),
]


@pytest.mark.parametrize(("status", "reason", "evidence"), REASONS)
async def test_each_trouble_is_told_and_ends(status, reason, evidence):
    async with world() as it:
        it.wish()
        await it.round()
        run_everything(it.api)
        (victim,) = [p["metadata"]["name"] for p in it.api.all(POD) if "decode" in p["metadata"]["name"]]
        set_status(it.api, victim, status)
        set_counts(it.api, "decode", counts(1, available=0))
        await it.round()
        assert it.said("DecodeReady") == ("False", reason)
        assert evidence in it.message("DecodeReady")
        assert it.said("Available") == ("False", reason)
        set_status(it.api, victim, READY)
        set_counts(it.api, "decode", counts(1))
        await it.round()
        assert it.said("DecodeReady") == ("True", Reason.READY)
        assert it.said("Available") == ("True", Reason.AVAILABLE)


async def test_pods_that_a_quota_refuses_are_told():
    async with world() as it:
        it.wish()
        await it.round()
        failure = condition("ReplicaFailure", "True", message="exceeded quota: gpus")
        set_counts(it.api, "decode", {**counts(0), "conditions": [failure]})
        await it.round()
        assert it.said("DecodeReady") == ("False", Reason.PODS_REFUSED)
        assert "exceeded quota" in it.message("DecodeReady")


async def test_a_missing_secret_is_told_at_once_and_looked_for_again():
    async with world() as it:
        it.wish({"model": {"tokenSecretRef": {"name": "hub", "key": "token"}}})
        result = await it.round()
        assert result.after == SECRET_POLL_SECONDS
        assert it.said("EncodeReady") == ("False", Reason.MISSING_SECRET)
        assert "kubectl create secret generic hub -n ns --from-literal=token=" in it.message("Available")
        hub = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub", "namespace": "ns"}}
        it.api.add({**hub, "data": {"other": "eA=="}})
        await it.round()
        assert "has no key 'token'" in it.message("EncodeReady")
        it.api.change(SECRET, "hub", lambda secret: secret["data"].update(token="eA=="))
        assert (await it.round()).after is None
        assert it.said("EncodeReady") == ("False", Reason.STARTING)


@pytest.mark.parametrize("name", ["../../other/secrets/theirs", "..", "a/b", "a?b", "A"])
async def test_what_cannot_be_the_name_of_a_secret_is_never_part_of_a_path(name):
    async with world() as it:
        asked = []
        it.api.fault = lambda _, path: asked.append(path)
        it.wish({"model": {"tokenSecretRef": {"name": name, "key": "token"}}})
        await it.round()
        secrets = {
            path
            for path in asked
            if not any(f"/{kind.plural}" in path for kind in (*CHILDREN, RESOURCE, POD))
        }
        assert secrets == {"/api/v1/namespaces/ns/secrets/demo-stage-token"}
        assert "spec.model.tokenSecretRef.name" in it.message("Progressing")


async def test_a_secret_that_may_not_be_read_is_left_to_the_kubelet():
    async with world() as it:
        it.wish({"model": {"tokenSecretRef": {"name": "hub", "key": "token"}}})
        it.api.fault = lambda _, path: refusal(403, "Forbidden", "no") if path.endswith("/hub") else None
        assert (await it.round()).after is None
        assert it.said("EncodeReady") == ("False", Reason.STARTING)


async def test_an_invalid_spec_is_the_users_to_fix_and_changes_nothing_that_runs():
    async with world(images=Images()) as it:
        it.wish()
        result = await it.round()
        assert (result.failed, result.after) == (False, None)
        assert it.said("Available") == ("False", Reason.INVALID_SPEC)
        assert "spec.image: required" in it.message("Available")
        assert it.api.names(DEPLOYMENT) == set()
        it.api.writes.clear()
        await it.round()
        assert it.api.writes == []
        it.wish({"image": "mine:1", "router": {"image": "mine:2"}})
        await it.round()
        assert len(it.api.names(DEPLOYMENT)) == 4
        it.wish({"image": "mine:1"})
        await it.round()
        assert it.said("Progressing") == ("False", Reason.INVALID_SPEC)
        assert len(it.api.names(DEPLOYMENT)) == 4


async def test_a_rule_that_only_python_knows_is_told_with_its_path():
    async with world() as it:
        it.wish({"decode": {"contract": "MetadataOnly"}, "model": {"family": "LLaVA"}})
        await it.round()
        assert it.said("Progressing") == ("False", Reason.INVALID_SPEC)
        assert "spec.decode.contract: MetadataOnly is impossible for LLaVA" in it.message("Progressing")


def reject_decode(method, path):
    if method == "PATCH" and path.endswith("/deployments/demo-decode"):
        return refusal(422, "Invalid", "spec.template.spec.affinity: Invalid value")
    return None


async def test_an_object_that_the_api_server_rejects_is_tried_again_when_the_spec_changes():
    async with world() as it:
        it.wish()
        it.api.fault = reject_decode
        assert not (await it.round()).failed
        assert it.said("DecodeReady") == ("False", Reason.REJECTED)
        assert "affinity: Invalid value" in it.message("Available")
        assert len(it.api.names(DEPLOYMENT)) == 3
        it.api.fault = None
        it.api.writes.clear()
        await it.round()
        await it.round()
        assert it.api.writes == []
        it.wish({"decode": {"labels": {"x": "y"}}})
        await it.round()
        assert "demo-decode" in it.api.names(DEPLOYMENT)


async def test_a_policy_that_no_longer_refuses_an_object_is_noticed_at_the_next_resync():
    async with world() as it:
        it.wish()
        it.api.fault = reject_decode
        await it.round()
        it.api.fault = None
        noon = it.reconciler.now()
        it.reconciler.now = lambda: noon + it.reconciler.refused_for / 2
        await it.round()
        assert it.said("Progressing") == ("False", Reason.REJECTED)
        assert "every few minutes" in it.message("Progressing")
        it.reconciler.now = lambda: noon + it.reconciler.refused_for
        await it.round()
        assert it.said("Progressing") == ("True", Reason.ROLLING_OUT)
        assert "demo-decode" in it.api.names(DEPLOYMENT)


async def test_an_object_that_is_still_refused_is_tried_once_in_each_resync_period():
    async with world() as it:
        it.wish()
        it.api.fault = reject_decode
        await it.round()
        start, tries = it.reconciler.now(), []

        def refuse(method, path):
            refused = reject_decode(method, path)
            if refused is not None:
                tries.append(path)
            return refused

        it.api.fault = refuse
        for quarters in range(1, 13):
            it.reconciler.now = lambda q=quarters: start + q * it.reconciler.refused_for / 4
            await it.round()
        assert len(tries) == 3


CLAIM_IS_IMMUTABLE = (422, "Invalid", "spec: Forbidden: spec is immutable after creation")
CLAIM_CANNOT_GROW = (403, "Forbidden", "only dynamically provisioned pvc can be resized and ...")


@pytest.mark.parametrize("answer", [CLAIM_IS_IMMUTABLE, CLAIM_CANNOT_GROW], ids=["immutable", "too small"])
async def test_a_claim_that_cannot_be_changed_is_told_with_the_way_out(answer):
    async with world() as it:
        it.wish()
        await it.settle()
        it.api.fault = lambda method, path: (
            refusal(*answer) if method == "PATCH" and "/persistentvolumeclaims/" in path else None
        )
        it.wish({"handoff": {"sharedVolume": {"capacity": "40Gi"}}})
        assert not (await it.round()).failed
        assert it.said("Progressing") == ("False", Reason.REJECTED)
        message = it.message("Progressing")
        assert answer[2] in message
        assert "kubectl delete pvc demo-embeddings -n ns --wait=false" in message
        assert "kubectl delete pod -n ns -l mmdisagg.io/deployment=demo" in message
        it.api.delete(CLAIM, "demo-embeddings")
        it.api.fault = None
        await it.round()
        assert it.api.find(CLAIM, "demo-embeddings")["spec"]["resources"]["requests"]["storage"] == "40Gi"


async def test_a_missing_right_on_claims_is_no_claim_that_cannot_be_changed():
    async with world() as it:
        it.wish()
        await it.settle()
        it.api.fault = lambda method, path: (
            refusal(403, "Forbidden", "cannot patch resource") if "/persistentvolumeclaims/" in path else None
        )
        it.wish({"handoff": {"sharedVolume": {"capacity": "40Gi"}}})
        assert (await it.round()).failed
        assert it.said("Progressing") == ("False", Reason.APPLY_FAILED)


async def test_a_change_that_is_rejected_leaves_the_numbers_of_what_runs():
    async with world() as it:
        it.wish({"decode": {"replicas": 2}})
        await it.round()
        run_everything(it.api)
        await it.settle()
        it.api.fault = reject_decode
        it.wish({"decode": {"replicas": 2, "labels": {"x": "y"}}})
        await it.round()
        assert it.said("Progressing") == ("False", Reason.REJECTED)
        assert it.said("Available") == ("True", Reason.DEGRADED)
        assert it.status()["roles"]["decode"]["summary"] == "2/2"


@pytest.mark.parametrize("status", [500, 403, 429])
async def test_an_object_that_fails_for_now_is_told_and_tried_again(status):
    async with world() as it:
        it.wish()
        it.api.fault = lambda method, path: (
            refusal(status, "Some", "etcd is slow")
            if (method, "/services/" in path) == ("PATCH", True)
            else None
        )
        assert (await it.round()).failed
        assert it.said("Progressing") == ("False", Reason.APPLY_FAILED)
        assert "etcd is slow" in it.message("Progressing")
        assert len(it.api.names(DEPLOYMENT)) == 4
        it.api.fault = None
        assert not (await it.round()).failed
        assert it.said("Progressing")[0] == "True"


@pytest.mark.parametrize("after", range(0, 27, 2))
async def test_an_operator_that_ends_after_any_number_of_writes_is_no_loss(after):
    async with world() as it:
        it.wish()
        it.api.fault = lambda method, _: (
            refusal(500, "InternalError", "gone") if method != "GET" and len(it.api.writes) >= after else None
        )
        with contextlib.suppress(ApiError):
            await it.round()
        assert len(it.api.writes) == min(after, 26)
        it.api.fault = None
        it.restart()
        await it.round()
        assert {kind.name for kind in CHILDREN if it.api.names(kind)} == {kind.name for kind in CHILDREN}
        assert len(it.api.names(DEPLOYMENT)) == 4
        assert len(it.tokens) == (1 if after else 2)
        it.api.writes.clear()
        await it.round()
        assert it.api.writes == []


@pytest.mark.parametrize("after", range(14))
async def test_an_operator_that_ends_after_any_number_of_writes_of_an_edit_is_no_loss(after):
    async with world() as it:
        it.wish()
        await it.settle()
        it.wish({"engine": {"maxModelLen": 8192}}, Topology.EP_D)
        it.api.fault = lambda method, _: (
            refusal(500, "InternalError", "gone") if method != "GET" and len(it.api.writes) >= after else None
        )
        with contextlib.suppress(ApiError):
            await it.round()
        assert len(it.api.writes) == after
        it.api.fault = None
        it.restart()
        await it.round()
        changed = {w["metadata"]["name"] for w in it.api.all(DEPLOYMENT) if "8192" in str(w)}
        assert changed == {"demo-prefill", "demo-decode"}
        assert it.api.names(DEPLOYMENT) == {*changed, "demo-router"}
        assert it.api.names(CLAIM) == set()
        assert it.status()["observedGeneration"] == 2
        it.api.writes.clear()
        await it.round()
        assert it.api.writes == []


async def test_a_stage_token_that_cannot_be_made_is_told():
    async with world() as it:
        it.wish()
        it.api.fault = lambda method, _: (
            refusal(403, "Forbidden", "no Secrets for you") if method == "POST" else None
        )
        assert (await it.round()).failed
        assert "no Secrets for you" in it.message("Available")


async def test_an_operator_that_may_not_look_says_so_and_tries_again():
    async with world() as it:
        it.wish()
        await it.settle()
        said = it.said("DecodeReady")
        it.api.fault = lambda _, path: (
            refusal(403, "Forbidden", "cannot list networkpolicies") if "networkpolicies" in path else None
        )
        for _ in range(2):
            with pytest.raises(ApiError):
                await it.round()
        assert it.said("Available") == ("Unknown", Reason.FORBIDDEN)
        assert it.said("Progressing") == ("False", Reason.FORBIDDEN)
        assert "cannot list networkpolicies; extend the operator's Role" in it.message("Progressing")
        assert it.said("DecodeReady") == said
        assert len(it.api.writes) == 1
        it.api.fault = None
        await it.round()
        assert it.said("Available") == ("False", Reason.STARTING)


async def test_an_api_server_that_refuses_to_tell_raises():
    async with world() as it:
        it.wish()
        it.api.fault = lambda *_: refusal(500, "InternalError", "down")
        with pytest.raises(ApiError, match="down"):
            await it.round()


async def test_an_api_server_that_does_not_answer_raises():
    async with world() as it:
        unreachable = kopf.ConnectionInfo(server="http://127.0.0.1:1")
        it.reconciler.cluster.login = lambda: unreachable
        with pytest.raises(UnreachableError):
            await it.round()


async def test_an_object_of_somebody_else_is_not_touched():
    async with world() as it:
        it.wish()
        service = {"apiVersion": "v1", "kind": "Service", "spec": {"ports": []}}
        it.api.add({**service, "metadata": {"name": "demo-router", "namespace": "ns"}})
        assert (await it.round()).failed
        assert it.said("Progressing") == ("False", Reason.NAME_CONFLICT)
        assert "Service demo-router" in it.message("Progressing")
        assert it.api.find(SERVICE, "demo-router")["spec"] == {"ports": []}


async def test_children_of_a_deleted_namesake_are_waited_for():
    async with world() as it:
        it.wish()
        await it.settle()
        it.api.delete(RESOURCE, "demo")
        it.wish()
        assert (await it.round()).failed
        assert it.said("Progressing") == ("False", Reason.NAME_CONFLICT)
        assert "Secret demo-stage-token: belongs to another owner" in it.message("Progressing")
        for kind in (SECRET, *CHILDREN):
            for name in it.api.names(kind):
                it.api.delete(kind, name)
        assert not (await it.round()).failed
        assert len(it.api.names(DEPLOYMENT)) == 4


async def test_a_resource_that_is_gone_or_going_is_left_alone():
    async with world() as it:
        assert (await it.round()).gone
        it.wish()
        it.api.change(RESOURCE, "demo", lambda one: one["metadata"].update(deletionTimestamp="now"))
        assert (await it.round()).gone
        assert it.api.writes == []


async def test_a_resource_that_goes_during_the_round_is_no_error():
    async with world() as it:
        it.wish()
        it.api.fault = lambda _, path: refusal(404, "NotFound", "gone") if path.endswith("/status") else None
        assert not (await it.round()).failed
