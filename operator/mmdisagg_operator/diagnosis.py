"""What keeps a pod from serving, in one reason and one sentence. Pure.

Exit codes 40 to 42 are the worker's own; their text is the container's termination message.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .plan.objects import CONTAINER, STARTUP_SECONDS, Manifest
from .reasons import PASSING, STUCK, Reason

EXIT_CODES: Final[Mapping[int, Reason]] = {
    40: Reason.UNKNOWN_FAMILY,
    41: Reason.WRONG_ENGINE_VERSION,
    42: Reason.BAD_SETTINGS,
}
_IMAGE_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CREATION_REASONS: Final = frozenset(
    {"CreateContainerError", "RunContainerError", "CreateContainerConfigError", "StartError"}
)
_INSUFFICIENT: Final = re.compile(r"Insufficient ([A-Za-z0-9./_-]*[A-Za-z0-9])")
_NO_SECRET: Final = re.compile(r"secret \"[^\"]+\" not found|couldn't find key \S+ in Secret \S+")
_LONGEST: Final = 400
_ORDER: Final = {reason: rank for rank, reason in enumerate((*STUCK, *PASSING))}


@dataclass(frozen=True)
class Finding:
    """What keeps pods from serving.

    Attributes:
        reason: the condition's reason.
        state: what the pods are, such as `unschedulable`; reads on from "1 of 2 pods".
        detail: the evidence, in the words of whoever noticed.
        pod: name of one such pod; empty where none was made.
    """

    reason: Reason
    state: str
    detail: str = ""
    pod: str = ""

    @property
    def rank(self) -> int:
        """Smaller is more telling."""
        return _ORDER[self.reason]


def worst(findings: Iterable[Finding]) -> Finding | None:
    """Return the most telling finding, or None."""
    return min(findings, key=lambda finding: finding.rank, default=None)


def is_ready(pod: Manifest) -> bool:
    """Whether a pod serves and goes on doing so."""
    return not is_leaving(pod) and _condition(pod, "Ready").get("status") == "True"


def is_leaving(pod: Manifest) -> bool:
    """Whether a pod is being deleted or has come to its end."""
    return has_failed(pod) or "deletionTimestamp" in pod["metadata"]


def has_failed(pod: Manifest) -> bool:
    """Whether a pod has come to its end for good; another is made in its place."""
    return bool(pod.get("status", {}).get("phase") == "Failed")


def examine(pod: Manifest) -> Finding | None:
    """Return what keeps a pod from serving; None for one that serves."""
    if is_ready(pod):
        return None
    if "deletionTimestamp" in pod["metadata"]:
        return Finding(Reason.TERMINATING, "ending", pod=_name(pod))
    if has_failed(pod):
        return _ended(pod)
    return _unschedulable(pod) or _container(pod)


def refused(deployment: Manifest) -> Finding | None:
    """Return why the pods of a Deployment cannot be made, or None."""
    failure = _condition(deployment, "ReplicaFailure")
    if failure.get("status") != "True":
        return None
    return Finding(Reason.PODS_REFUSED, "refused by the cluster", _short(failure.get("message", "")))


def _ended(pod: Manifest) -> Finding:
    status = pod["status"]
    detail = f"{status.get('reason', 'Failed')}: {status.get('message', '')}"
    return Finding(Reason.EVICTED, "thrown out by their node", _short(detail), _name(pod))


def _unschedulable(pod: Manifest) -> Finding | None:
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    message = scheduled.get("message", "")
    missing = _INSUFFICIENT.findall(message)
    accelerator = next((name for name in missing if "/" in name), None)
    detail = _short(message.partition(" preemption:")[0])
    if accelerator is not None:
        text = f"Insufficient {accelerator} ({detail.rstrip('.')})"
        return Finding(Reason.INSUFFICIENT_GPU, "unschedulable", text, _name(pod))
    if "persistentvolumeclaim" in message.lower():
        return Finding(Reason.VOLUME_PENDING, "waiting for a volume", detail, _name(pod))
    return Finding(Reason.UNSCHEDULABLE, "unschedulable", detail, _name(pod))


def _container(pod: Manifest) -> Finding:
    status = _container_status(pod)
    state, last = status.get("state", {}), status.get("lastState", {})
    waiting = state.get("waiting", {})
    if waiting.get("reason") in _IMAGE_REASONS:
        detail = f"{status.get('image', '')}: {waiting.get('message', waiting['reason'])}"
        return Finding(Reason.IMAGE_PULL_FAILED, "without their image", _short(detail), _name(pod))
    if waiting.get("reason") in _CREATION_REASONS:
        return _not_created(pod, waiting)
    if "running" in state and status.get("started"):
        return Finding(Reason.NOT_READY, "running without an answer to /health", pod=_name(pod))
    ended = state.get("terminated") or last.get("terminated")
    crashed = _crashed(pod, status, ended) if ended else None
    return crashed or _on_the_way(pod, state)


def _not_created(pod: Manifest, waiting: Mapping[str, Any]) -> Finding:
    message = waiting.get("message", waiting["reason"])
    if _NO_SECRET.search(message):
        return Finding(Reason.MISSING_SECRET, "waiting for a Secret", _short(message), _name(pod))
    return Finding(Reason.CANNOT_START, "unable to start", _short(message), _name(pod))


def _crashed(pod: Manifest, status: Mapping[str, Any], ended: Mapping[str, Any]) -> Finding | None:
    code, restarts = ended.get("exitCode", 0), status.get("restartCount", 0)
    message = _short(ended.get("message", ""))
    if code in EXIT_CODES:
        return Finding(EXIT_CODES[code], "refusing to start", message or f"exit code {code}", _name(pod))
    if ended.get("reason") == "OOMKilled":
        return Finding(Reason.OUT_OF_MEMORY, "out of memory", f"killed after {restarts} restarts", _name(pod))
    looping = "waiting" in status.get("state", {}) or "terminated" in status.get("state", {})
    if not looping and restarts < 2:
        return None
    detail = f"exit code {code}, {restarts} restarts" + (f": {message}" if message else "")
    return Finding(Reason.CRASH_LOOP, "ending again and again", detail, _name(pod))


def _on_the_way(pod: Manifest, state: Mapping[str, Any]) -> Finding:
    running = state.get("running")
    if running is None:
        return Finding(Reason.STARTING, "being made", pod=_name(pod))
    since, limit = running.get("startedAt", "its start"), STARTUP_SECONDS // 60
    return Finding(Reason.LOADING, "loading", f"since {since}; up to {limit} min are allowed", _name(pod))


def _container_status(pod: Manifest) -> Mapping[str, Any]:
    """Meshes and the like put containers of their own into pods, in any place."""
    statuses: Sequence[Mapping[str, Any]] = pod.get("status", {}).get("containerStatuses") or ()
    return next((status for status in statuses if status["name"] in CONTAINER.values()), {})


def _condition(manifest: Manifest, kind: str) -> Mapping[str, Any]:
    conditions = manifest.get("status", {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _short(text: str) -> str:
    """One line, and its end rather than its beginning: logs say last what went wrong."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"... {line[-_LONGEST:]}"


def _name(pod: Manifest) -> str:
    return str(pod["metadata"]["name"])
