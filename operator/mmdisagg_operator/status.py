"""From what was seen to the status that people and scripts read. Pure: the time is an argument.

| condition   | True                                               | otherwise                           |
|-------------|----------------------------------------------------|-------------------------------------|
| Available   | a revision is complete: a pod of every role serves | False, with the reason of the worst |
| Progressing | the last change has arrived, or is on its way      | False: waiting does not help        |
| <Role>Ready | as many pods serve as are wanted                   | False, with what keeps them from it |

Rules for setting one: `lastTransitionTime` changes with `status` alone, `observedGeneration` is that of the
spec spoken about, a condition of a role that the deployment no longer has is dropped, and messages hold
nothing that changes by itself, such as a duration.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import ValidationError

from .api import (
    Condition,
    ConditionStatus,
    ConditionType,
    MultimodalDisaggDeployment,
    Problem,
    Role,
    RoleStatus,
    Status,
)
from .api.status import RoleStatuses
from .apply import Failure
from .kinds import DEPLOYMENT
from .plan import revision
from .plan.objects import Manifest, router_url
from .reasons import STUCK, Reason
from .roles import RoleView

READY_TYPES: Final[Mapping[Role, ConditionType]] = {
    Role.ENCODE: ConditionType.ENCODE_READY,
    Role.PREFILL: ConditionType.PREFILL_READY,
    Role.DECODE: ConditionType.DECODE_READY,
    Role.ROUTER: ConditionType.ROUTER_READY,
}
_LONGEST: Final = 2000


@dataclass(frozen=True)
class Verdict:
    """What a condition says, before it is dated.

    Attributes:
        type: which condition.
        status: whether it holds.
        reason: why, in one word.
        message: why, for people.
    """

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str

    @property
    def holds(self) -> bool:
        """Whether the condition is True."""
        return self.status is ConditionStatus.TRUE


@dataclass(frozen=True)
class View:
    """Everything that a status follows from.

    Attributes:
        deployment: the wish, with images filled in.
        roles: its roles, the router last.
        failures: objects that could not be written.
    """

    deployment: MultimodalDisaggDeployment
    roles: tuple[RoleView, ...]
    failures: tuple[Failure, ...] = ()

    @property
    def revision(self) -> str:
        """The revision that serves: the wanted one if it is complete, else another; empty without one."""
        engines = [view.serving_revisions for view in self.roles if view.role is not Role.ROUTER]
        complete = frozenset.intersection(*engines)
        wanted = revision(self.deployment.spec)
        return wanted if wanted in complete else max(complete, default="")


def status_of(view: View, previous: Status, now: datetime) -> Status:
    """Return the status of a deployment that could be planned.

    Args:
        view: what was seen.
        previous: the status that is written now.
        now: the time, for conditions that change.
    """
    ready = [_role_ready(role, view) for role in view.roles]
    progressing = _progressing(view)
    available = _available(view, ready, progressing)
    generation = view.deployment.metadata.generation
    return Status(
        observed_generation=generation,
        conditions=_dated((available, progressing, *ready), previous, generation, now),
        roles=RoleStatuses(**{str(role.role): _counts(role) for role in view.roles}),
        revision=view.revision,
        url=router_url(view.deployment),
    )


def invalid_status(
    problems: Sequence[Problem], previous: Status, generation: int, now: datetime, *, has_pods: bool
) -> Status:
    """Return the status of a resource that cannot be planned; what runs already is left alone and unjudged.

    Args:
        problems: what the user must change.
        previous: the status that is written now.
        generation: of the invalid spec.
        now: the time, for conditions that change.
        has_pods: whether anything runs for an earlier spec.
    """
    message = "; ".join(map(str, problems))
    available = ConditionStatus.UNKNOWN if has_pods else ConditionStatus.FALSE
    verdicts = (
        Verdict(ConditionType.AVAILABLE, available, Reason.INVALID_SPEC, message),
        _no(ConditionType.PROGRESSING, Reason.INVALID_SPEC, message),
    )
    return _unjudged(verdicts, previous, generation, now)


def unseen_status(message: str, previous: Status, generation: int, now: datetime) -> Status:
    """Return the status of a deployment that the operator may not look at.

    Args:
        message: what it may not see.
        previous: the status that is written now.
        generation: of the spec.
        now: the time, for conditions that change.
    """
    told = f"{message}; extend the operator's Role in this namespace"
    verdicts = (
        Verdict(ConditionType.AVAILABLE, ConditionStatus.UNKNOWN, Reason.FORBIDDEN, told),
        _no(ConditionType.PROGRESSING, Reason.FORBIDDEN, told),
    )
    return _unjudged(verdicts, previous, generation, now)


def _unjudged(verdicts: tuple[Verdict, ...], previous: Status, generation: int, now: datetime) -> Status:
    """Say only these; what was said of the roles stands, with the generation that it was said of."""
    spoken = {verdict.type for verdict in verdicts}
    kept = tuple(condition for condition in previous.conditions if condition.type not in spoken)
    conditions = (*_dated(verdicts, previous, generation, now), *kept)
    return previous.model_copy(update={"observed_generation": generation, "conditions": conditions})


def written_status(resource: Manifest) -> Status:
    """Return the status that a resource has; an empty one where there is none that can be read."""
    try:
        return Status.model_validate_json(json.dumps(resource.get("status") or {}))
    except ValidationError:
        return Status()


def status_json(status: Status) -> Manifest:
    """Return a status as the API server takes it."""
    data: Manifest = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return data


def _role_ready(role: RoleView, view: View) -> Verdict:
    kind = READY_TYPES[role.role]
    if role.workload is None:
        failure = _failure_of(role, view)
        reason = failure.reason if failure else Reason.STARTING
        return _no(kind, reason, str(failure) if failure else "its Deployment has not been made yet")
    if role.desired == 0:
        return _no(kind, Reason.SCALED_TO_ZERO, f"no pods are wanted; set spec.{role.role}.replicas")
    if role.ready >= role.desired:
        return _yes(kind, Reason.READY, f"{role.ready} of {role.desired} pods ready")
    return _no(kind, *role.explain())


def _failure_of(role: RoleView, view: View) -> Failure | None:
    """What failed before the role's own Deployment may be why that one was not even tried."""
    who = (DEPLOYMENT.name, f"{view.deployment.metadata.name}-{role.role}")
    return min(view.failures, key=lambda failure: failure.identity != who, default=None)


def _progressing(view: View) -> Verdict:
    kind = ConditionType.PROGRESSING
    if view.failures:
        first = min(view.failures, key=lambda failure: not failure.terminal)
        return _no(kind, first.reason, "; ".join(map(str, view.failures)) + _outlook(first))
    moving = [role for role in view.roles if not role.complete]
    for role in moving:
        reason, message = role.explain()
        if reason in STUCK:
            return _no(kind, reason, f"{role.role}: {message}")
    if not moving:
        return _yes(kind, Reason.COMPLETE, "the last change has reached every pod")
    return _yes(kind, Reason.ROLLING_OUT, "; ".join(map(_movement, moving)))


def _outlook(failure: Failure) -> str:
    return (
        " (tried again when the spec changes, and every few minutes)"
        if failure.terminal
        else " (tried again)"
    )


def _movement(role: RoleView) -> str:
    return f"{role.role}: {role.updated} of {role.desired} pods updated, {role.ready} ready"


def _available(view: View, ready: Sequence[Verdict], progressing: Verdict) -> Verdict:
    kind = ConditionType.AVAILABLE
    pairs = list(zip(view.roles, ready, strict=True))
    missing = [(role, verdict) for role, verdict in pairs if role.ready == 0]
    if missing:
        role, verdict = min(missing, key=lambda pair: _severity(pair[1].reason))
        return _no(kind, verdict.reason, f"{role.role}: {verdict.message}")
    if not view.revision:
        return _no(kind, Reason.ROLLING_OUT, "no revision has a pod of every role yet")
    serving = f"revision {view.revision} at {router_url(view.deployment)}"
    troubles = [f"{role.role}: {verdict.message}" for role, verdict in pairs if not verdict.holds]
    if not progressing.holds and not troubles:
        troubles = [progressing.message]
    if troubles:
        return _yes(kind, Reason.DEGRADED, f"{serving}; {'; '.join(troubles)}")
    return _yes(kind, Reason.AVAILABLE, serving)


def _severity(reason: Reason) -> int:
    ranks = {stuck: rank for rank, stuck in enumerate((Reason.REJECTED, Reason.NAME_CONFLICT, *STUCK))}
    return ranks.get(reason, len(ranks))


def _counts(role: RoleView) -> RoleStatus:
    return RoleStatus(
        desired=role.desired,
        ready=role.ready,
        updated=role.updated,
        summary=f"{role.ready}/{role.desired}",
    )


def _dated(
    verdicts: Sequence[Verdict], previous: Status, generation: int, now: datetime
) -> tuple[Condition, ...]:
    return tuple(_condition(verdict, previous, generation, now) for verdict in verdicts)


def _condition(verdict: Verdict, previous: Status, generation: int, now: datetime) -> Condition:
    before = next((c for c in previous.conditions if c.type == verdict.type), None)
    changed = before is None or before.status is not verdict.status
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Condition(
        type=verdict.type,
        status=verdict.status,
        reason=verdict.reason,
        message=_short(verdict.message),
        last_transition_time=stamp if before is None or changed else before.last_transition_time,
        observed_generation=generation,
    )


def _yes(kind: ConditionType, reason: Reason, message: str) -> Verdict:
    return Verdict(kind, ConditionStatus.TRUE, reason, message)


def _no(kind: ConditionType, reason: Reason, message: str) -> Verdict:
    return Verdict(kind, ConditionStatus.FALSE, reason, message)


def _short(message: str) -> str:
    return message if len(message) <= _LONGEST else message[: _LONGEST - 3] + "..."
