"""The Deployment of each role."""

from collections.abc import Mapping
from typing import Any, Final

from mmdisagg_operator.api import ModelSource, MultimodalDisaggDeployment, PodFields, Role, RolloutStrategy
from mmdisagg_operator.plan.handoff import serves_embeddings
from mmdisagg_operator.plan.launch import FieldReference, Launch, Reference
from mmdisagg_operator.plan.revision import revision
from mmdisagg_operator.plan.site import EMBEDDING_PORT, HTTP_PORT, SIDE_CHANNEL_PORT, ClusterSite

from .access import service_account
from .identity import REVISION_LABEL, Manifest, child, child_name, labels, selector
from .probes import STARTUP_SECONDS, drain_hook, grace_seconds, probes
from .volumes import CACHE_MOUNT, volumes

STAGE_TOKEN_ANNOTATION: Final = "mmdisagg.io/stage-token"  # noqa: S105 - a name, no secret
"""Which stage token a pod was made with: a new one must reach every pod."""

CONTAINER: Final = {True: "engine", False: "router"}

HOME: Final[Mapping[str, str]] = {
    "HOME": CACHE_MOUNT,
    "XDG_CACHE_HOME": CACHE_MOUNT,
    "XDG_CONFIG_HOME": CACHE_MOUNT,
    "USER": "mmdisagg",
}
"""A home for a user id that no password file knows, on a read-only root; users may override it."""

_POD_SECURITY: Final = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_SECURITY: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
_SURGE: Final = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}
_RECREATE: Final = {"type": "Recreate"}


def workload(
    deployment: MultimodalDisaggDeployment, role: Role, launch: Launch, site: ClusterSite, token: str
) -> Manifest:
    """Return the Deployment of a role.

    Without `replicas` in the spec it has none either: the API server fills in one, and whoever scales the
    Deployment owns the number.

    Args:
        deployment: the wish; images are filled in.
        role: a role that the deployment has.
        launch: what the role's process is started with.
        site: where its pods run.
        token: identity of the stage token, not the token itself.
    """
    fields = _fields(deployment, role)
    spec: Manifest = {
        **({} if fields.replicas is None else {"replicas": fields.replicas}),
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": STARTUP_SECONDS + 600,
        "strategy": _strategy(deployment, role),
        "selector": {"matchLabels": selector(deployment, role)},
        "template": {
            "metadata": _pod_metadata(deployment, role, token),
            "spec": _pod(deployment, role, launch, site),
        },
    }
    return {
        **child(deployment, "apps/v1 Deployment", child_name(deployment, role), role=role),
        "spec": spec,
    }


def _fields(deployment: MultimodalDisaggDeployment, role: Role) -> PodFields:
    return deployment.spec.role(role) or deployment.spec.router


def _strategy(deployment: MultimodalDisaggDeployment, role: Role) -> Manifest:
    in_place = deployment.spec.rollout.strategy is RolloutStrategy.RECREATE
    return dict(_RECREATE if in_place and role is not Role.ROUTER else _SURGE)


def _pod_metadata(deployment: MultimodalDisaggDeployment, role: Role, token: str) -> Manifest:
    fields = _fields(deployment, role)
    engine = role is not Role.ROUTER
    return {
        "labels": {
            **fields.labels,
            **labels(deployment, role),
            **({REVISION_LABEL: revision(deployment.spec)} if engine else {}),
        },
        "annotations": {**fields.annotations, STAGE_TOKEN_ANNOTATION: token},
    }


def _pod(deployment: MultimodalDisaggDeployment, role: Role, launch: Launch, site: ClusterSite) -> Manifest:
    fields = _fields(deployment, role)
    mounted = volumes(deployment, role, site)
    return {
        **_account(deployment, role),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds(site.drain_seconds),
        "securityContext": {**_POD_SECURITY, **(fields.pod_security_context or {})},
        **_scheduling(fields),
        "containers": [_container(deployment, role, launch, mounted["volumeMounts"])],
        "volumes": mounted["volumes"],
    }


def _account(deployment: MultimodalDisaggDeployment, role: Role) -> Manifest:
    """Only the router speaks with the API server."""
    if role is not Role.ROUTER:
        return {"automountServiceAccountToken": False}
    return {"serviceAccountName": service_account(deployment), "automountServiceAccountToken": True}


def _scheduling(fields: PodFields) -> Manifest:
    wanted = fields.scheduling.model_dump(mode="json", by_alias=True, exclude_none=True)
    secrets = [{"name": secret.name} for secret in fields.image_pull_secrets]
    chosen = {**wanted, "imagePullSecrets": secrets}
    return {name: value for name, value in chosen.items() if value}


def _container(
    deployment: MultimodalDisaggDeployment, role: Role, launch: Launch, mounts: list[Any]
) -> Manifest:
    fields = _fields(deployment, role)
    engine = role is not Role.ROUTER
    return {
        "name": CONTAINER[engine],
        "image": deployment.spec.image if engine else deployment.spec.router.image,
        "command": [launch.program],
        "args": list(launch.args),
        "env": _environment(deployment, launch, engine=engine),
        "ports": _ports(deployment, role),
        **_resources(fields),
        **probes(role),
        "lifecycle": drain_hook(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {**_SECURITY, **(fields.security_context or {})},
        "volumeMounts": mounts,
    }


def _environment(deployment: MultimodalDisaggDeployment, launch: Launch, *, engine: bool) -> list[Manifest]:
    """References stand first: values refer to them as `$(NAME)`."""
    offline = engine and deployment.spec.model.source is ModelSource.PATH
    plain = {
        **(HOME if engine else {}),
        **({"HF_HUB_OFFLINE": "1"} if offline else {}),
        **launch.env,
    }
    filled = [{"name": name, "valueFrom": _source(ref)} for name, ref in launch.references.items()]
    return [*filled, *({"name": name, "value": value} for name, value in plain.items())]


def _source(reference: Reference) -> Manifest:
    if isinstance(reference, FieldReference):
        return {"fieldRef": {"apiVersion": "v1", "fieldPath": reference.path}}
    return {"secretKeyRef": {"name": reference.name, "key": reference.key}}


def _ports(deployment: MultimodalDisaggDeployment, role: Role) -> list[Manifest]:
    ports = [("http", HTTP_PORT)]
    if role is not Role.ROUTER:
        ports.append(("handshake", SIDE_CHANNEL_PORT))
    if serves_embeddings(deployment.spec, role):
        ports.append(("embeddings", EMBEDDING_PORT))
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports]


def _resources(fields: PodFields) -> Manifest:
    wanted = {"limits": dict(fields.resources.limits), "requests": dict(fields.resources.requests)}
    filled = {name: amounts for name, amounts in wanted.items() if amounts}
    return {"resources": filled} if filled else {}
