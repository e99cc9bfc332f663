"""Names and labels of a deployment's children: how they are found, selected and told apart."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from mmdisagg_operator.api import API_VERSION, KIND, MultimodalDisaggDeployment, Role

Manifest: TypeAlias = dict[str, Any]
"""An object of Kubernetes' API, as its JSON."""

APPLICATION: Final = "mmdisagg"
MANAGER: Final = "mmdisagg-operator"
"""Field manager of everything that the operator applies."""

DEPLOYMENT_LABEL: Final = "mmdisagg.io/deployment"
ROLE_LABEL: Final = "mmdisagg.io/role"
REVISION_LABEL: Final = "mmdisagg.io/revision"

_REVISION_DIGITS: Final = 8


def child_name(deployment: MultimodalDisaggDeployment, part: str) -> str:
    """Return the name of a child, such as `demo-decode`."""
    return f"{deployment.metadata.name}-{part}"


def revision_name(deployment: MultimodalDisaggDeployment, role: Role, revision: str) -> str:
    """Return the name of the Service that holds a role's pods of one revision."""
    return child_name(deployment, f"{role}-{revision[:_REVISION_DIGITS]}")


def selector(deployment: MultimodalDisaggDeployment, role: Role) -> dict[str, str]:
    """Return the labels that select a role's pods; they never change, as a Deployment's selector cannot."""
    return {DEPLOYMENT_LABEL: deployment.metadata.name, ROLE_LABEL: str(role)}


def labels(deployment: MultimodalDisaggDeployment, role: Role | None = None) -> dict[str, str]:
    """Return the labels of a child, of one role or of all."""
    common = {
        "app.kubernetes.io/name": APPLICATION,
        "app.kubernetes.io/instance": deployment.metadata.name,
        "app.kubernetes.io/managed-by": MANAGER,
        DEPLOYMENT_LABEL: deployment.metadata.name,
    }
    if role is None:
        return common
    return {**common, "app.kubernetes.io/component": str(role), ROLE_LABEL: str(role)}


def child(
    deployment: MultimodalDisaggDeployment,
    kind: str,
    name: str,
    *,
    role: Role | None = None,
    extra_labels: Mapping[str, str] | None = None,
) -> Manifest:
    """Return the beginning of a child: kind, name, labels and owner.

    Args:
        deployment: the owner.
        kind: API version and kind, such as `apps/v1 Deployment`.
        name: the child's own name.
        role: the role that the child belongs to, if to one.
        extra_labels: labels beside the common ones.
    """
    api_version, kind_name = kind.split()
    return {
        "apiVersion": api_version,
        "kind": kind_name,
        "metadata": {
            "name": name,
            "namespace": deployment.metadata.namespace,
            "labels": {**labels(deployment, role), **(extra_labels or {})},
            "ownerReferences": [owner(deployment)],
        },
    }


def owner(deployment: MultimodalDisaggDeployment) -> Manifest:
    """Return the reference by which the garbage collector removes children with their deployment.

    It does not block the owner's deletion: OpenShift lets only those set that who may write finalizers.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": deployment.metadata.name,
        "uid": deployment.metadata.uid,
        "controller": True,
    }
