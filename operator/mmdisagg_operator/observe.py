"""Reads what there is of one deployment. Everything is read from the API server, so nothing is ever stale."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .api.names import OBJECT_NAME
from .cluster import Cluster
from .errors import ApiError
from .kinds import CHILDREN, POD, RESOURCE, SECRET, Kind
from .plan.objects import DEPLOYMENT_LABEL, MANAGER, REVISION_LABEL, Manifest
from .plan.site import stage_token_name

_MANAGED: Final = {"app.kubernetes.io/managed-by": MANAGER}
MANAGED_SELECTOR: Final = ",".join(f"{name}={value}" for name, value in _MANAGED.items())
"""Selects every object that any deployment's children are among."""

_REVISION: Final = re.compile(r"[0-9a-f]+")
_SECRET_NAME: Final = re.compile(OBJECT_NAME)
"""Anything else is no name, and as a part of a path might lead to another namespace."""


@dataclass(frozen=True)
class Observation:
    """What there is of one deployment.

    Attributes:
        resource: the resource itself.
        children: objects with the deployment's label, by kind; None for a kind that the cluster lacks.
        pods: its pods.
        stage_token: the Secret with the stage token, if it was made.
        missing_secret: what the resource refers to and is not there, in words, if anything.
    """

    resource: Manifest
    children: Mapping[Kind, tuple[Manifest, ...] | None]
    pods: tuple[Manifest, ...]
    stage_token: Manifest | None
    missing_secret: str | None = None

    @property
    def revisions(self) -> frozenset[str]:
        """Revisions that still have pods; a label that somebody else has made up is none."""
        found = (pod["metadata"].get("labels", {}).get(REVISION_LABEL, "") for pod in self.pods)
        return frozenset(filter(_REVISION.fullmatch, found))


async def find(cluster: Cluster, namespace: str, name: str) -> Manifest | None:
    """Return the resource; None when it is gone or going, and its children with it.

    Raises:
        ApiError: the API server refuses to tell.
        UnreachableError: the API server does not answer.
    """
    resource = await cluster.get(RESOURCE, namespace, name)
    return None if resource is None or "deletionTimestamp" in resource["metadata"] else resource


async def observe(cluster: Cluster, resource: Manifest) -> Observation:
    """Read everything that there is of a resource's deployment.

    Raises:
        ApiError: the API server refuses to tell.
        UnreachableError: the API server does not answer.
    """
    namespace, name = resource["metadata"]["namespace"], resource["metadata"]["name"]
    listed, token, missing = await asyncio.gather(
        _lists(cluster, namespace, {DEPLOYMENT_LABEL: name}),
        cluster.get(SECRET, namespace, stage_token_name(name)),
        _missing_secret(cluster, namespace, resource),
    )
    pods = listed.pop(POD) or ()
    return Observation(resource, listed, pods, token, missing)


async def _lists(
    cluster: Cluster, namespace: str, labels: Mapping[str, str]
) -> dict[Kind, tuple[Manifest, ...] | None]:
    kinds = (*CHILDREN, POD)
    found = await asyncio.gather(*(cluster.list(kind, namespace, labels) for kind in kinds))
    pairs = zip(kinds, found, strict=True)
    return {kind: None if items is None else tuple(items) for kind, items in pairs}


async def _missing_secret(cluster: Cluster, namespace: str, resource: Manifest) -> str | None:
    """The kubelet would notice too, but only once a pod is on a node and its image is there."""
    reference = resource["spec"].get("model", {}).get("tokenSecretRef")
    if not reference:
        return None
    name, key = reference["name"], reference["key"]
    try:
        secret = await cluster.get(SECRET, namespace, name) if _SECRET_NAME.fullmatch(name) else None
    except ApiError as error:
        if error.status == 403:
            return None
        raise
    if secret is not None and key in (secret.get("data") or {}):
        return None
    lacks = f"Secret {name!r} is missing" if secret is None else f"Secret {name!r} has no key {key!r}"
    command = f"kubectl create secret generic {name} -n {namespace} --from-literal={key}=VALUE"
    return f"{lacks}, to which spec.model.tokenSecretRef refers; make it: {command}"
