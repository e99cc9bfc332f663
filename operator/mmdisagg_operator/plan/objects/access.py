"""What the router may ask the API server: the addresses of its deployment's engines, and nothing else.

Kubernetes cannot narrow a Role to labels, so it reads every EndpointSlice of its namespace.
"""

from mmdisagg_operator.api import MultimodalDisaggDeployment, Role

from .identity import Manifest, child, child_name


def service_account(deployment: MultimodalDisaggDeployment) -> str:
    """Return the name of the router's ServiceAccount, Role and RoleBinding."""
    return child_name(deployment, Role.ROUTER)


def access(deployment: MultimodalDisaggDeployment) -> tuple[Manifest, ...]:
    """Return the router's ServiceAccount, its Role and the binding of both."""
    name = service_account(deployment)
    account = child(deployment, "v1 ServiceAccount", name, role=Role.ROUTER)
    role = child(deployment, "rbac.authorization.k8s.io/v1 Role", name, role=Role.ROUTER)
    binding = child(deployment, "rbac.authorization.k8s.io/v1 RoleBinding", name, role=Role.ROUTER)
    slices = {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    }
    subject = {"kind": "ServiceAccount", "name": name, "namespace": deployment.metadata.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    return (
        {**account, "automountServiceAccountToken": False},
        {**role, "rules": [slices]},
        {**binding, "roleRef": reference, "subjects": [subject]},
    )
