"""Conditions, counts and columns, from crafted pods and Deployments."""

from datetime import UTC, datetime

import pytest
from documents import document
from hypothesis import given
from hypothesis import strategies as st
from pods import CREATING, LOADING, NO_GPU, READY, counts, ended, pod, waiting

from mmdisagg_operator.api import ConditionStatus, Problem, Status, Topology, load_deployment
from mmdisagg_operator.apply import Failure
from mmdisagg_operator.plan import revision
from mmdisagg_operator.plan.objects import Images, with_images
from mmdisagg_operator.reasons import Reason
from mmdisagg_operator.roles import role_views
from mmdisagg_operator.status import View, invalid_status, status_json, status_of, written_status

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
LATER = datetime(2026, 12, 1, 13, tzinfo=UTC)
ROLES = ("encode", "prefill", "decode", "router")


def wish(change=None, topology=Topology.E_P_D):
    made = document(topology, change)
    made["metadata"] |= {"namespace": "ns", "uid": "u", "generation": 7}
    return with_images(load_deployment(made), Images("w", "r"))


REVISION = revision(wish().spec)


def workload(replicas=1, status=None, generation=1):
    return {
        "metadata": {"generation": generation},
        "spec": {"replicas": replicas},
        "status": counts(replicas) if status is None else status,
    }


def pods_of(role, *statuses, revision=REVISION):
    return [pod(role, status, f"{role}-{n}", revision) for n, status in enumerate(statuses)]


def status(pods=None, workloads=None, failures=(), previous=None, now=NOON, change=None, secret=None):
    """The status of a deployment whose roles all run well, but for what is given."""
    deployment = wish(change)
    everyone = {role: pods_of(role, READY) for role in ROLES} | (pods or {})
    all_workloads = {role: workload() for role in ROLES} | (workloads or {})
    named = {f"demo-{role}": one for role, one in all_workloads.items() if one is not None}
    flat = [one for group in everyone.values() for one in group]
    view = View(deployment, role_views(deployment, named, flat, secret), tuple(failures))
    return status_of(view, previous or Status(), now)


def condition(found, kind):
    return next(c for c in found.conditions if c.type == kind)


def said(found, kind):
    one = condition(found, kind)
    return one.status.value, one.reason


def test_all_conditions_hold_when_everything_serves():
    found = status()
    assert [c.type for c in found.conditions] == [
        "Available",
        "Progressing",
        "EncodeReady",
        "PrefillReady",
        "DecodeReady",
        "RouterReady",
    ]
    assert {c.status for c in found.conditions} == {ConditionStatus.TRUE}
    assert {c.observed_generation for c in found.conditions} == {found.observed_generation} == {7}
    assert said(found, "Available") == ("True", Reason.AVAILABLE)
    assert said(found, "Progressing") == ("True", Reason.COMPLETE)
    assert (found.revision, found.url) == (REVISION, "http://demo-router.ns.svc:8000")
    assert found.roles.decode.summary == "1/1"


def test_roles_that_a_deployment_lacks_have_neither_condition_nor_counts():
    deployment = wish(topology=Topology.PD)
    views = role_views(deployment, {"demo-decode": workload(), "demo-router": workload()}, [])
    found = status_of(View(deployment, views), Status(), NOON)
    assert [c.type for c in found.conditions] == ["Available", "Progressing", "DecodeReady", "RouterReady"]
    assert status_json(found)["roles"].keys() == {"decode", "router"}


def test_the_example_of_the_design():
    found = status(
        {"encode": pods_of("encode", READY, NO_GPU)}, {"encode": workload(2, counts(2, available=1))}
    )
    one = condition(found, "EncodeReady")
    assert (one.status, one.reason) == (ConditionStatus.FALSE, "InsufficientGPU")
    assert one.message.startswith("1 of 2 pods unschedulable: Insufficient nvidia.com/gpu")
    assert "spec.encode.replicas" in one.message
    assert said(found, "Available") == ("True", Reason.DEGRADED)
    assert said(found, "Progressing") == ("False", Reason.INSUFFICIENT_GPU)
    assert found.roles.encode.summary == "1/2"


@pytest.mark.case("c08")
def test_a_rollout_without_a_spare_gpu_names_the_shortage_and_the_way_out():
    old, new = pods_of("decode", READY, revision="old"), pods_of("decode", NO_GPU)
    others = {
        role: pods_of(role, READY, revision="old") + pods_of(role, READY) for role in ("encode", "prefill")
    }
    stuck = counts(2, updated=1, available=1)
    found = status({"decode": old + new, **others}, {"decode": workload(1, stuck)})
    assert said(found, "DecodeReady") == ("True", Reason.READY)
    one = condition(found, "Progressing")
    assert (one.status, one.reason) == (ConditionStatus.FALSE, "InsufficientGPU")
    assert "Insufficient nvidia.com/gpu" in one.message
    assert "spec.rollout.strategy: Recreate" in one.message
    assert said(found, "Available") == ("True", Reason.DEGRADED)
    assert found.revision == "old"
    assert (found.roles.decode.desired, found.roles.decode.ready, found.roles.decode.updated) == (1, 1, 1)


@pytest.mark.case("c08")
def test_who_replaces_in_place_already_gets_no_such_hint():
    change = {"rollout": {"strategy": "Recreate"}}
    pods = {"decode": pods_of("decode", READY, NO_GPU)}
    found = status(pods, {"decode": workload(2, counts(2, available=1))}, change=change)
    assert "Recreate" not in condition(found, "DecodeReady").message


@pytest.mark.case("c09")
def test_a_slow_load_is_progress():
    found = status({"decode": pods_of("decode", LOADING)}, {"decode": workload(1, counts(1, available=0))})
    assert said(found, "DecodeReady") == ("False", Reason.LOADING)
    assert said(found, "Progressing") == ("True", Reason.ROLLING_OUT)
    assert said(found, "Available") == ("False", Reason.LOADING)
    assert "kubectl logs -f -n ns decode-0" in condition(found, "DecodeReady").message


@pytest.mark.parametrize(
    ("broken", "reason", "remedy"),
    [
        (ended(40, "known: Qwen2-VL"), Reason.UNKNOWN_FAMILY, "spec.model.family"),
        (ended(41), Reason.WRONG_ENGINE_VERSION, "spec.image"),
        (ended(42), Reason.BAD_SETTINGS, "spec"),
        (ended(1, "boom"), Reason.CRASH_LOOP, "kubectl logs -n ns decode-0 --previous"),
        (waiting("ImagePullBackOff", "x"), Reason.IMAGE_PULL_FAILED, "spec.decode.imagePullSecrets"),
        (waiting("CreateContainerConfigError", 'secret "s" not found'), Reason.MISSING_SECRET, "Create"),
        (NO_GPU, Reason.INSUFFICIENT_GPU, "Free or add GPUs"),
    ],
)
def test_what_waiting_does_not_help_stops_the_progress_and_tells_what_to_do(broken, reason, remedy):
    found = status({"decode": pods_of("decode", broken)}, {"decode": workload(1, counts(1, available=0))})
    for kind in ("DecodeReady", "Progressing", "Available"):
        assert said(found, kind) == ("False", reason)
        assert remedy in condition(found, kind).message
    assert condition(found, "Available").message.startswith("decode: 1 of 1 pods ")
    assert said(found, "EncodeReady") == ("True", Reason.READY)


def test_the_worst_role_explains_why_nothing_is_available():
    pods = {"encode": pods_of("encode", LOADING), "decode": pods_of("decode", ended(40))}
    stuck = {role: workload(1, counts(1, available=0)) for role in pods}
    assert said(status(pods, stuck), "Available") == ("False", Reason.UNKNOWN_FAMILY)


def test_a_missing_secret_is_known_before_any_pod_waits_for_it():
    found = status(
        {role: pods_of(role, CREATING) for role in ROLES},
        {role: workload(1, counts(1, available=0)) for role in ROLES},
        secret="Secret 'hub' is missing; make it: kubectl create ...",
    )
    assert said(found, "EncodeReady") == ("False", Reason.MISSING_SECRET)
    assert "kubectl create" in condition(found, "EncodeReady").message
    assert said(found, "RouterReady") == ("False", Reason.STARTING)


def test_the_command_that_mends_a_missing_secret_is_told_while_pods_wait_for_it():
    waits = waiting("CreateContainerConfigError", 'secret "hub" not found')
    found = status(
        {"decode": pods_of("decode", waits, waits)},
        {"decode": workload(2, counts(2, available=0))},
        secret="Secret 'hub' is missing; make it: kubectl create ...",
    )
    message = condition(found, "DecodeReady").message
    assert message.startswith("2 of 2 pods waiting for a Secret: Secret 'hub' is missing; make it: kubectl")


def test_a_secret_that_went_missing_does_not_touch_pods_that_serve():
    assert said(status(secret="Secret 'hub' is missing"), "Available") == ("True", Reason.AVAILABLE)


def test_a_pod_that_was_thrown_out_matters_until_another_takes_its_place():
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "memory pressure"}
    short = {"decode": workload(1, counts(1, available=0))}
    alone = status({"decode": pods_of("decode", evicted)}, short)
    assert said(alone, "DecodeReady") == ("False", Reason.EVICTED)
    replaced = status({"decode": pods_of("decode", evicted, LOADING)}, short)
    assert said(replaced, "DecodeReady") == ("False", Reason.LOADING)


def test_pods_of_different_revisions_do_not_make_a_complete_one():
    pods = {"encode": pods_of("encode", READY, revision="old")}
    found = status(pods)
    assert said(found, "Available") == ("False", Reason.ROLLING_OUT)
    assert found.revision == ""


def test_nothing_is_available_without_a_router():
    found = status({"router": []}, {"router": workload(1, counts(0))})
    assert said(found, "Available") == ("False", Reason.STARTING)
    assert condition(found, "Available").message.startswith("router: ")


def test_a_role_scaled_to_zero_is_somebodys_wish():
    found = status({"decode": []}, {"decode": workload(0)})
    assert said(found, "DecodeReady") == ("False", Reason.SCALED_TO_ZERO)
    assert said(found, "Progressing") == ("True", Reason.COMPLETE)
    assert said(found, "Available") == ("False", Reason.SCALED_TO_ZERO)


def test_counts_of_an_unseen_change_do_not_count():
    seen_before = {**counts(1), "observedGeneration": 1}
    found = status(workloads={"decode": workload(1, seen_before, generation=2)})
    assert said(found, "Progressing") == ("True", Reason.ROLLING_OUT)
    assert found.roles.decode.updated == 0


def test_an_object_that_was_refused_is_named():
    failure = Failure(("Deployment", "demo-decode"), Reason.REJECTED, "spec.x: Invalid value", "mark")
    found = status({"decode": []}, {"decode": None}, [failure])
    for kind in ("Available", "Progressing", "DecodeReady"):
        assert said(found, kind) == ("False", Reason.REJECTED)
        assert "Deployment demo-decode: spec.x: Invalid value" in condition(found, kind).message
    assert (
        "tried again when the spec changes, and every few minutes" in condition(found, "Progressing").message
    )


def test_an_object_that_failed_for_now_leaves_what_serves_available():
    failure = Failure(("Service", "demo-router"), Reason.APPLY_FAILED, "500 InternalError: etcd")
    found = status(failures=[failure])
    assert said(found, "Progressing") == ("False", Reason.APPLY_FAILED)
    assert said(found, "Available") == ("True", Reason.DEGRADED)
    assert "etcd" in condition(found, "Available").message


def test_a_condition_is_dated_when_its_status_changes_and_only_then():
    first = status()
    broken = {"decode": pods_of("decode", ended(1))}
    stuck = {"decode": workload(1, counts(1, available=0))}
    second = status(broken, stuck, previous=first, now=LATER)
    third = status({"decode": pods_of("decode", LOADING)}, stuck, previous=second, now=LATER.replace(hour=14))
    stamps = [condition(found, "DecodeReady").last_transition_time for found in (first, second, third)]
    assert stamps == ["2026-12-01T12:00:00Z", "2026-12-01T13:00:00Z", "2026-12-01T13:00:00Z"]
    assert condition(second, "EncodeReady").last_transition_time == "2026-12-01T12:00:00Z"


def test_the_same_view_gives_the_same_status_at_any_time():
    first = status()
    assert status(previous=first, now=LATER) == first


def test_an_invalid_spec_is_named_and_what_runs_is_left_unjudged():
    problems = [Problem("spec.image", "required")]
    fresh = invalid_status(problems, Status(), 3, NOON, has_pods=False)
    assert said(fresh, "Available") == ("False", Reason.INVALID_SPEC)
    assert condition(fresh, "Progressing").message == "spec.image: required"
    running = invalid_status(problems, status(), 8, NOON, has_pods=True)
    assert said(running, "Available") == ("Unknown", Reason.INVALID_SPEC)
    assert said(running, "DecodeReady") == ("True", Reason.READY)
    assert condition(running, "DecodeReady").observed_generation == 7
    assert running.observed_generation == 8


def test_a_status_survives_being_written_and_read():
    found = status()
    assert written_status({"status": status_json(found)}) == found
    assert written_status({}) == Status()
    assert written_status({"status": {"conditions": "nonsense"}}) == Status()


STATES = st.sampled_from(
    [READY, LOADING, NO_GPU, CREATING, ended(1), ended(40), waiting("ErrImagePull", "x")]
)


@given(st.lists(STATES, max_size=3), st.lists(STATES, max_size=3), st.integers(0, 3))
def test_whatever_pods_do_a_status_can_be_written_and_settles(encode, decode, replicas):
    pods = {"encode": pods_of("encode", *encode), "decode": pods_of("decode", *decode)}
    found = status(pods, {"decode": workload(replicas)})
    assert status(pods, {"decode": workload(replicas)}, previous=found, now=LATER) == found
    assert written_status({"status": status_json(found)}) == found
    assert all(c.message for c in found.conditions)
