"""Services: the router's for clients, and headless ones by which the router finds engines.

A headless Service selects pods by role and revision, and its labels appear on its EndpointSlices: whoever
lists slices knows which pods belong together. While a rollout runs there is one for each revision that still
has pods. The role's own Service spans revisions; it gives engines a stable DNS name.
"""

from collections.abc import Iterable, Iterator

from mmdisagg_operator.api import ENGINE_ROLES, MultimodalDisaggDeployment, Role
from mmdisagg_operator.plan.site import HTTP_PORT

from .identity import REVISION_LABEL, Manifest, child, child_name, revision_name, selector

_PORT = {"name": "http", "port": HTTP_PORT, "protocol": "TCP", "targetPort": "http"}


def services(deployment: MultimodalDisaggDeployment, revisions: Iterable[str]) -> Iterator[Manifest]:
    """Yield the Services.

    Args:
        deployment: the wish.
        revisions: the current revision and those that still have pods.
    """
    yield _service(deployment, Role.ROUTER, headless=False)
    for role in ENGINE_ROLES:
        if deployment.spec.role(role) is None:
            continue
        yield _service(deployment, role, headless=True)
        yield from (_discovery(deployment, role, revision) for revision in sorted(set(revisions)))


def router_url(deployment: MultimodalDisaggDeployment) -> str:
    """Return the URL at which clients inside the cluster reach the router."""
    namespace = deployment.metadata.namespace
    return f"http://{child_name(deployment, Role.ROUTER)}.{namespace}.svc:{HTTP_PORT}"


def _service(deployment: MultimodalDisaggDeployment, role: Role, *, headless: bool) -> Manifest:
    service = child(deployment, "v1 Service", child_name(deployment, role), role=role)
    address = {"clusterIP": "None"} if headless else {}
    return {**service, "spec": {**address, "selector": selector(deployment, role), "ports": [_PORT]}}


def _discovery(deployment: MultimodalDisaggDeployment, role: Role, revision: str) -> Manifest:
    marked = {REVISION_LABEL: revision}
    name = revision_name(deployment, role, revision)
    service = child(deployment, "v1 Service", name, role=role, extra_labels=marked)
    chosen = {**selector(deployment, role), **marked}
    return {**service, "spec": {"clusterIP": "None", "selector": chosen, "ports": [_PORT]}}
