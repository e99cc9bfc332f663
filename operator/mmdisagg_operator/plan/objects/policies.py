"""Who may reach whose ports, and how many pods may be taken away at once.

| port                       | who may connect                                                       |
|----------------------------|-----------------------------------------------------------------------|
| router, HTTP               | everyone                                                              |
| engines, HTTP              | the router                                                            |
| encode, embeddings         | prefill, or decode in E/PD; with handoff Tcp                          |
| prefill and decode, others | prefill and decode: NIXL's handshake, and the ports UCX chooses       |

The kubelet's probes come from the node, which network plugins let through. Policies add up: one of the
user's own can let a metrics scraper in.
"""

from collections.abc import Iterator
from typing import Final

from mmdisagg_operator.api import MultimodalDisaggDeployment, Role
from mmdisagg_operator.plan.handoff import fetches_embeddings, moves_kv, serves_embeddings
from mmdisagg_operator.plan.site import EMBEDDING_PORT, HTTP_PORT

from .identity import DEPLOYMENT_LABEL, ROLE_LABEL, Manifest, child, child_name, selector

_ALL_BUT_HTTP: Final = (
    {"protocol": "TCP", "port": 1024, "endPort": HTTP_PORT - 1},
    {"protocol": "TCP", "port": HTTP_PORT + 1, "endPort": 65535},
)


def network_policy(deployment: MultimodalDisaggDeployment, role: Role) -> Manifest:
    """Return the NetworkPolicy of a role's pods."""
    policy = child(deployment, "networking.k8s.io/v1 NetworkPolicy", child_name(deployment, role), role=role)
    spec = {
        "podSelector": {"matchLabels": selector(deployment, role)},
        "policyTypes": ["Ingress"],
        "ingress": list(_ingress(deployment, role)),
    }
    return {**policy, "spec": spec}


def _ingress(deployment: MultimodalDisaggDeployment, role: Role) -> Iterator[Manifest]:
    http = [{"protocol": "TCP", "port": HTTP_PORT}]
    if role is Role.ROUTER:
        yield {"ports": http}
        return
    yield {"from": [{"podSelector": {"matchLabels": selector(deployment, Role.ROUTER)}}], "ports": http}
    if serves_embeddings(deployment.spec, role):
        consumers = [r for r in Role if fetches_embeddings(deployment.spec, r)]
        peers = [{"podSelector": {"matchLabels": selector(deployment, consumer)}} for consumer in consumers]
        yield {"from": peers, "ports": [{"protocol": "TCP", "port": EMBEDDING_PORT}]}
    if moves_kv(deployment.spec.topology, role):
        yield {"from": [_kv_peers(deployment)], "ports": list(_ALL_BUT_HTTP)}


def _kv_peers(deployment: MultimodalDisaggDeployment) -> Manifest:
    peers = [str(role) for role in Role if moves_kv(deployment.spec.topology, role)]
    roles = {"key": ROLE_LABEL, "operator": "In", "values": peers}
    own = {DEPLOYMENT_LABEL: deployment.metadata.name}
    return {"podSelector": {"matchLabels": own, "matchExpressions": [roles]}}


def disruption_budget(deployment: MultimodalDisaggDeployment, role: Role) -> Manifest:
    """Return the PodDisruptionBudget of a role: one pod at a time, so that a lone one can be moved too.

    Pods that do not work may always be evicted.
    """
    budget = child(deployment, "policy/v1 PodDisruptionBudget", child_name(deployment, role), role=role)
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": selector(deployment, role)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return {**budget, "spec": spec}
