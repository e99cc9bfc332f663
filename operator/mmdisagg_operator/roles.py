"""How each role of a deployment is doing: its Deployment and its pods, read together. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .api import ENGINE_ROLES, MultimodalDisaggDeployment, Role, RolloutStrategy
from .diagnosis import Finding, examine, has_failed, is_ready, refused, worst
from .plan.objects import REVISION_LABEL, ROLE_LABEL, Manifest, roles_of
from .reasons import REMEDIES, SURGE_HINT, Reason


@dataclass(frozen=True)
class RoleView:
    """One role as it is.

    Attributes:
        role: which.
        namespace: where its pods run.
        workload: its Deployment; None where it could not be made.
        pods: its pods, those that end included.
        findings: what keeps pods from serving, one for each such pod or for the whole role.
        surges: whether a rollout adds pods before it removes any.
    """

    role: Role
    namespace: str
    workload: Manifest | None
    pods: tuple[Manifest, ...] = ()
    findings: tuple[Finding, ...] = ()
    surges: bool = True

    @property
    def desired(self) -> int:
        """Pods wanted."""
        return 1 if self.workload is None else int(self.workload["spec"].get("replicas", 1))

    @property
    def ready(self) -> int:
        """Pods that serve."""
        return sum(map(is_ready, self.pods))

    @property
    def updated(self) -> int:
        """Pods made from the current template, as far as the Deployment's controller has seen it."""
        return int(self._seen.get("updatedReplicas", 0))

    @property
    def complete(self) -> bool:
        """Whether the last change has reached every pod, and every pod serves."""
        counts = (self._seen.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas"))
        return bool(self._seen) and all(count == self.desired for count in counts)

    @property
    def serving_revisions(self) -> frozenset[str]:
        """Revisions of which at least one pod serves."""
        ready = (pod for pod in self.pods if is_ready(pod))
        return frozenset(pod["metadata"]["labels"].get(REVISION_LABEL, "") for pod in ready)

    @property
    def finding(self) -> Finding | None:
        """The most telling finding, if there is any."""
        return worst(self.findings)

    @property
    def _seen(self) -> Mapping[str, Any]:
        if self.workload is None:
            return {}
        status: Mapping[str, Any] = self.workload.get("status") or {}
        current = status.get("observedGeneration", 0) >= self.workload["metadata"].get("generation", 0)
        return status if current else {}

    def explain(self) -> tuple[Reason, str]:
        """Return why the role is not as it should be, for a machine and for people."""
        finding = self.finding
        if finding is None:
            return Reason.STARTING, f"{self.ready} of {self.desired} pods ready"
        count = sum(other.reason is finding.reason for other in self.findings)
        text = f"{count} of {self.desired} pods {finding.state}"
        text += f": {finding.detail.rstrip('.')}." if finding.detail else "."
        return finding.reason, f"{text} {self._remedy(finding)}".strip()

    def _remedy(self, finding: Finding) -> str:
        remedy = REMEDIES.get(finding.reason, "").format(
            role=self.role, namespace=self.namespace, pod=finding.pod or "POD"
        )
        holds_others = self.surges and len(self.pods) > len(self.findings)
        return remedy + (SURGE_HINT if finding.reason is Reason.INSUFFICIENT_GPU and holds_others else "")


def role_views(
    deployment: MultimodalDisaggDeployment,
    workloads: Mapping[str, Manifest],
    pods: Sequence[Manifest],
    missing_secret: str | None = None,
) -> tuple[RoleView, ...]:
    """Return the view of each role that the deployment has, the router last.

    Args:
        deployment: the wish.
        workloads: Deployments by their name.
        pods: the pods of all roles.
        missing_secret: a Secret that engines need, in words, where it is missing.
    """
    return tuple(
        _view(deployment, role, workloads.get(f"{deployment.metadata.name}-{role}"), pods, missing_secret)
        for role in roles_of(deployment)
    )


def _relevant(pods: Sequence[Manifest], workload: Manifest | None) -> list[Manifest]:
    """Failed pods stay until they are collected; they matter while nothing has taken their place."""
    alive = [pod for pod in pods if not has_failed(pod)]
    wanted = 1 if workload is None else workload["spec"].get("replicas", 1)
    return alive if len(alive) >= wanted else list(pods)


def _with_missing_secret(findings: Sequence[Finding], missing: str) -> list[Finding]:
    """What the spec refers to is told in place of the kubelet's words: the command to mend it is known."""
    others = [finding for finding in findings if finding.reason is not Reason.MISSING_SECRET]
    told = Finding(Reason.MISSING_SECRET, "waiting for a Secret", missing)
    return others + [told] * max(1, len(findings) - len(others))


def _view(
    deployment: MultimodalDisaggDeployment,
    role: Role,
    workload: Manifest | None,
    pods: Sequence[Manifest],
    missing_secret: str | None,
) -> RoleView:
    own = tuple(pod for pod in pods if pod["metadata"].get("labels", {}).get(ROLE_LABEL) == role)
    findings = [finding for finding in map(examine, _relevant(own, workload)) if finding]
    failure = refused(workload) if workload else None
    if failure:
        findings.append(failure)
    serving = bool(own) and not findings
    if missing_secret and role in ENGINE_ROLES and not serving:
        findings = _with_missing_secret(findings, missing_secret)
    in_place = deployment.spec.rollout.strategy is RolloutStrategy.RECREATE and role is not Role.ROUTER
    return RoleView(
        role, deployment.metadata.namespace or "", workload, own, tuple(findings), surges=not in_place
    )
