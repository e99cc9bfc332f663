"""Brings the cluster to what the plan wants: decides what differs (pure), then writes only that."""

import asyncio
import hashlib
import json
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from .cluster import Cluster
from .drift import drifted, owns
from .errors import ApiError, ConflictError, InvalidObjectError
from .kinds import CHILDREN, CLAIM, DEPLOYMENT, kind_of
from .observe import Observation
from .plan.objects import DEPLOYMENT_LABEL, MANAGER, Manifest
from .reasons import Reason

HANDOVER_MANAGER: Final = "mmdisagg-operator-handover"
"""Holds a Deployment's `replicas` between the spec, which gives them up, and whoever scales next."""

_LAST: Final = ("RoleBinding", DEPLOYMENT.name)
"""Written when all that they refer to is there: a Role, and what pods need."""

_NO_RESIZE: Final = "only dynamically provisioned pvc can be resized"
"""What the API server says of a claim whose storage class cannot make it larger (Kubernetes 1.34)."""

R = TypeVar("R")

Identity = tuple[str, str]
"""Kind and name."""


@dataclass(frozen=True)
class Failure:
    """An object that could not be written.

    Attributes:
        identity: which one.
        reason: condition reason.
        message: what the API server said.
        fingerprint: what was refused; empty where trying again may help.
    """

    identity: Identity
    reason: Reason
    message: str
    fingerprint: str = ""

    @property
    def terminal(self) -> bool:
        """Whether trying again soon cannot help: the object must change, or the policy that refuses it."""
        return bool(self.fingerprint)

    def __str__(self) -> str:
        kind, name = self.identity
        return f"{kind} {name}: {self.message}"


@dataclass(frozen=True)
class Change:
    """An object that is missing or differs.

    Attributes:
        wanted: as it should be.
        present: as it was listed; None where it was not, which need not mean that it is not there.
    """

    wanted: Manifest
    present: Manifest | None


@dataclass(frozen=True)
class Changes:
    """What must be written.

    Attributes:
        apply: what is missing or differs, in the order in which to write it.
        delete: objects that nobody wants any more.
        kept: wanted objects that are as they should be.
    """

    apply: tuple[Change, ...] = ()
    delete: tuple[Manifest, ...] = ()
    kept: tuple[Manifest, ...] = ()


@dataclass(frozen=True)
class Applied:
    """What was written, and what not.

    Attributes:
        live: the wanted objects as they are now, by kind and name.
        failures: those that could not be written.
    """

    live: Mapping[Identity, Manifest]
    failures: tuple[Failure, ...] = ()


def identity(manifest: Manifest) -> Identity:
    """Return kind and name of an object."""
    return manifest["kind"], manifest["metadata"]["name"]


def changes(wanted: Sequence[Manifest], observed: Observation) -> Changes:
    """Compare what is wanted with what is there."""
    present = {identity(child): child for child in _children(observed)}
    known = [one for one in wanted if observed.children.get(kind_of(one), ()) is not None]
    pairs = [Change(one, present.get(identity(one))) for one in known]
    names = {identity(one) for one in wanted}
    owner = observed.resource["metadata"]["uid"]
    return Changes(
        apply=tuple(pair for pair in pairs if _differs(pair)),
        delete=tuple(one for i, one in present.items() if i not in names and controller(one) == owner),
        kept=tuple(pair.present for pair in pairs if pair.present and not _differs(pair)),
    )


def _children(observed: Observation) -> Iterator[Manifest]:
    for kind in CHILDREN:
        yield from observed.children.get(kind) or ()


def _differs(change: Change) -> bool:
    return change.present is None or drifted(change.wanted, change.present, MANAGER)


def handover(change: Change) -> Manifest | None:
    """Return what holds a Deployment's number of pods while the operator gives it up, if it does so now.

    A field that its only manager stops applying falls back to its default: one pod, for a moment.
    """
    wanted, present = change.wanted, change.present
    if present is None or kind_of(wanted) is not DEPLOYMENT or "replicas" in wanted["spec"]:
        return None
    if not owns(present, MANAGER, "spec", "replicas"):
        return None
    names = {name: wanted["metadata"][name] for name in ("name", "namespace")}
    head = {name: wanted[name] for name in ("apiVersion", "kind")}
    return {**head, "metadata": names, "spec": {"replicas": present["spec"]["replicas"]}}


def controller(manifest: Manifest) -> str | None:
    """Return the uid of the object's controlling owner, or None."""
    owners: Iterable[Mapping[str, Any]] = manifest["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), None)


async def execute(cluster: Cluster, todo: Changes, refused: Mapping[Identity, Failure]) -> Applied:
    """Write the changes, as many of them as possible.

    Args:
        cluster: where to.
        todo: what.
        refused: what the API server has refused lately; the same again is not tried.

    Raises:
        UnreachableError: the API server does not answer.
    """
    live = {identity(one): one for one in todo.kept}
    last = [change for change in todo.apply if change.wanted["kind"] in _LAST]
    first = [change for change in todo.apply if change.wanted["kind"] not in _LAST]
    failures: list[Failure] = []
    for stage in (first, last):
        results = await _together(_write(cluster, one, refused.get(identity(one.wanted))) for one in stage)
        failures += (result for result in results if isinstance(result, Failure))
        live |= {identity(result): result for result in results if not isinstance(result, Failure)}
    failures += (
        failure for failure in await _together(_delete(cluster, one) for one in todo.delete) if failure
    )
    return Applied(live, tuple(failures))


async def _together(work: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Do everything at once and to its end, then raise the first error, if there was any."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def _delete(cluster: Cluster, unwanted: Manifest) -> Failure | None:
    try:
        await cluster.delete(unwanted)
    except ApiError as error:
        return Failure(identity(unwanted), Reason.APPLY_FAILED, str(error))
    return None


async def _write(cluster: Cluster, change: Change, before: Failure | None) -> Manifest | Failure:
    wanted, who = change.wanted, identity(change.wanted)
    try:
        present = change.present or await _unlisted(cluster, wanted)
    except ApiError as error:
        return Failure(who, Reason.APPLY_FAILED, str(error))
    stranger = _stranger(wanted, present)
    if stranger is not None:
        return Failure(who, Reason.NAME_CONFLICT, stranger)
    mark = fingerprint(wanted, present)
    if before is not None and before.fingerprint == mark:
        return before
    try:
        await _hand_over(cluster, Change(wanted, present))
        return await cluster.apply(wanted)
    except ApiError as error:
        if isinstance(error, InvalidObjectError) or _cannot_grow(error):
            return Failure(who, Reason.REJECTED, error.message + _remedy(wanted, present), mark)
        return Failure(who, Reason.APPLY_FAILED, str(error))


def _cannot_grow(error: ApiError) -> bool:
    """Whether a claim's storage class cannot make it larger, which is told like a missing right."""
    return error.status == 403 and _NO_RESIZE in error.message


def _remedy(wanted: Manifest, present: Manifest | None) -> str:
    """Return what to do about a claim that cannot be changed; it goes once no pod uses it."""
    if present is None or kind_of(wanted) is not CLAIM:
        return ""
    namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
    owner = wanted["metadata"]["labels"][DEPLOYMENT_LABEL]
    return (
        "; undo the change of spec.handoff.sharedVolume, or have the claim made anew (requests then fail): "
        f"kubectl delete pvc {name} -n {namespace} --wait=false && "
        f"kubectl delete pod -n {namespace} -l {DEPLOYMENT_LABEL}={owner}"
    )


async def _unlisted(cluster: Cluster, wanted: Manifest) -> Manifest | None:
    """Return an object of that name that does not carry our labels, if there is one."""
    return await cluster.get(kind_of(wanted), wanted["metadata"]["namespace"], wanted["metadata"]["name"])


def _stranger(wanted: Manifest, present: Manifest | None) -> str | None:
    """Return why an object of this name must not be touched, or None."""
    if present is None:
        return None
    mine = wanted["metadata"]["ownerReferences"][0]["uid"]
    owner = controller(present)
    ours = present["metadata"].get("labels", {}).items() >= wanted["metadata"]["labels"].items()
    if owner == mine or (owner is None and ours):
        return None
    if owner is None:
        return "an object of this name exists and is nobody's child; rename or delete it"
    return f"an object of this name belongs to another owner (uid {owner}); it must go first"


async def _hand_over(cluster: Cluster, change: Change) -> None:
    held = handover(change)
    if held is None:
        return
    try:
        await cluster.apply(held, manager=HANDOVER_MANAGER, force=False)
    except ConflictError:
        # Somebody has scaled it since it was read, and so owns the number already.
        return


def fingerprint(wanted: Manifest, present: Manifest | None) -> str:
    """Return what identifies a try: the same object onto the same state is refused again."""
    uid = present["metadata"]["uid"] if present else ""
    return hashlib.sha256(f"{uid} {json.dumps(wanted, sort_keys=True)}".encode()).hexdigest()
