"""Each state that a pod can be stuck in has its reason and its evidence."""

import pytest
from pods import (
    CREATING,
    LOADING,
    LOADING_LIMIT,
    NO_GPU,
    READY,
    SILENT,
    condition,
    container,
    ended,
    pod,
    unschedulable,
    waiting,
)

from mmdisagg_operator.diagnosis import EXIT_CODES, Finding, examine, is_leaving, is_ready, refused, worst
from mmdisagg_operator.reasons import PASSING, REMEDIES, STUCK, Reason

UNKNOWN = "UnknownFamily: model_type 'phi4' has no decode contract; known: Qwen2-VL, Qwen2.5-VL"
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
RESTARTED_ONCE = container(
    {"running": {"startedAt": "2026-12-01T08:00:00Z"}},
    started=False,
    restartCount=1,
    lastState={"terminated": {"exitCode": 1, "message": "boom"}},
)
SILENT_AFTER_CRASHES = container(
    {"running": {"startedAt": "2026-12-01T08:00:00Z"}},
    started=True,
    restartCount=5,
    lastState={"terminated": {"exitCode": 1, "message": "long ago"}},
)
REFUSING_AGAIN = container(
    {"running": {"startedAt": "2026-12-01T08:00:00Z"}},
    started=False,
    restartCount=1,
    lastState={"terminated": {"exitCode": 40, "message": UNKNOWN}},
)


@pytest.mark.parametrize(
    ("status", "reason", "evidence"),
    [
        (NO_GPU, Reason.INSUFFICIENT_GPU, "Insufficient nvidia.com/gpu (0/2 nodes are available: 2 Insuff"),
        (
            unschedulable("0/2 nodes are available: 2 Insufficient cpu."),
            Reason.UNSCHEDULABLE,
            "2 Insufficient cpu",
        ),
        (
            unschedulable("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."),
            Reason.UNSCHEDULABLE,
            "node affinity",
        ),
        (
            unschedulable("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."),
            Reason.VOLUME_PENDING,
            "unbound immediate",
        ),
        (waiting("ErrImagePull", "not found"), Reason.IMAGE_PULL_FAILED, "worker:1: not found"),
        (waiting("ImagePullBackOff", 'Back-off pulling image "x"'), Reason.IMAGE_PULL_FAILED, "worker:1"),
        (waiting("InvalidImageName", "couldn't parse"), Reason.IMAGE_PULL_FAILED, "couldn't parse"),
        (waiting("CreateContainerConfigError", 'secret "hub" not found'), Reason.MISSING_SECRET, '"hub"'),
        (
            waiting("CreateContainerConfigError", "couldn't find key token in Secret ns/hub"),
            Reason.MISSING_SECRET,
            "key token",
        ),
        (
            waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"),
            Reason.CANNOT_START,
            "runAsNonRoot",
        ),
        (waiting("RunContainerError", 'exec: "mmdisagg-worker": not found'), Reason.CANNOT_START, "exec"),
        (ended(40, UNKNOWN), Reason.UNKNOWN_FAMILY, "known: Qwen2-VL"),
        (REFUSING_AGAIN, Reason.UNKNOWN_FAMILY, "phi4"),
        (ended(41, "vLLM 0.31.0 is installed"), Reason.WRONG_ENGINE_VERSION, "0.31.0"),
        (ended(42, "", restarts=1), Reason.BAD_SETTINGS, "exit code 42"),
        (ended(137, reason="OOMKilled"), Reason.OUT_OF_MEMORY, "3 restarts"),
        (ended(1, "RuntimeError: CUDA error"), Reason.CRASH_LOOP, "exit code 1, 3 restarts: RuntimeError"),
        (ended(0, ""), Reason.CRASH_LOOP, "exit code 0"),
        (EVICTED, Reason.EVICTED, "low on resource"),
        (SILENT, Reason.NOT_READY, ""),
        (SILENT_AFTER_CRASHES, Reason.NOT_READY, ""),
        (LOADING, Reason.LOADING, f"since 2026-12-01T08:00:00Z; up to {LOADING_LIMIT} min"),
        (RESTARTED_ONCE, Reason.LOADING, "since"),
        (CREATING, Reason.STARTING, ""),
        ({}, Reason.STARTING, ""),
    ],
)
def test_a_pod_that_does_not_serve_says_why(status, reason, evidence):
    finding = examine(pod("decode", status, "demo-decode-x"))
    assert (finding.reason, finding.pod) == (reason, "demo-decode-x")
    assert evidence in finding.detail


def test_a_pod_that_serves_has_nothing_to_say():
    ready = pod("decode", READY)
    assert examine(ready) is None
    assert is_ready(ready)


def test_a_pod_that_is_deleted_serves_no_more():
    leaving = pod("decode", READY, deletionTimestamp="2026-12-01T08:00:00Z")
    assert not is_ready(leaving)
    assert is_leaving(leaving)
    assert examine(leaving).reason is Reason.TERMINATING


def test_the_container_of_a_mesh_is_not_judged():
    status = ended(40, UNKNOWN)
    proxy = {"name": "a-proxy", "started": True, "restartCount": 0, "state": {"running": {}}}
    beside = {**status, "containerStatuses": [proxy, *status["containerStatuses"]]}
    assert examine(pod("decode", beside)).reason is Reason.UNKNOWN_FAMILY
    alone = {**status, "containerStatuses": [proxy]}
    assert examine(pod("decode", alone)).reason is Reason.STARTING


@pytest.mark.case("c09")
def test_messages_do_not_change_while_nothing_happens():
    assert examine(pod("decode", LOADING)) == examine(pod("decode", LOADING))
    assert "min" in examine(pod("decode", LOADING)).detail


def test_a_long_message_keeps_its_end():
    finding = examine(pod("decode", ended(1, "first line\n" + "x" * 3000 + "\nthe cause")))
    assert finding.detail.endswith("the cause")
    assert len(finding.detail) < 500
    assert "\n" not in finding.detail


def test_a_quota_that_refuses_pods_shows():
    failure = condition("ReplicaFailure", "True", message='pods "x" is forbidden: exceeded quota: gpus')
    assert refused({"status": {"conditions": [failure]}}).reason is Reason.PODS_REFUSED
    assert "exceeded quota" in refused({"status": {"conditions": [failure]}}).detail
    assert refused({"status": {}}) is None


def test_the_most_telling_finding_wins():
    found = [Finding(reason, "") for reason in (Reason.LOADING, Reason.CRASH_LOOP, Reason.UNKNOWN_FAMILY)]
    assert worst(found).reason is Reason.UNKNOWN_FAMILY
    assert worst([]) is None


def test_every_reason_that_a_pod_can_have_is_ranked_and_has_a_remedy():
    assert set(EXIT_CODES.values()) <= set(STUCK)
    assert set(STUCK) | set(PASSING) == set(REMEDIES) | {Reason.TERMINATING}
