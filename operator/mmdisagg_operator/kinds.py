"""The kinds of objects that the operator reads and writes, and their paths in the API."""

from dataclasses import dataclass
from typing import Final

from mmdisagg_operator.api.resource import API_VERSION, KIND, PLURAL
from mmdisagg_operator.plan.objects import Manifest


@dataclass(frozen=True)
class Kind:
    """A kind of namespaced object.

    Attributes:
        api_version: such as `apps/v1`.
        name: such as `Deployment`.
        plural: its name in paths, such as `deployments`.
        optional: whether a cluster may do without it; its objects are then left out.
    """

    api_version: str
    name: str
    plural: str
    optional: bool = False

    @property
    def group(self) -> str:
        """The API group; empty for the core one."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version within the group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the path of the collection, of one object or of its subresource."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        parts = (root, "namespaces", namespace, self.plural, name, subresource)
        return "/".join(part for part in parts if part)


RESOURCE: Final = Kind(API_VERSION, KIND, PLURAL)
POD: Final = Kind("v1", "Pod", "pods")
SECRET: Final = Kind("v1", "Secret", "secrets")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
CLAIM: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")

CHILDREN: Final = (
    DEPLOYMENT,
    Kind("v1", "Service", "services"),
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    CLAIM,
    Kind("rbac.authorization.k8s.io/v1", "Role", "roles"),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", optional=True),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", optional=True),
)
"""Kinds that are applied, watched for drift and pruned. The stage-token Secret is only made."""

_KNOWN: Final = {(kind.api_version, kind.name): kind for kind in (RESOURCE, POD, SECRET, LEASE, *CHILDREN)}


def kind_of(manifest: Manifest) -> Kind:
    """Return the kind of an object.

    Raises:
        KeyError: the operator has nothing to do with it.
    """
    return _KNOWN[manifest["apiVersion"], manifest["kind"]]
