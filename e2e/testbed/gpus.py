"""Graphics processors that do not exist: capacity of a node that pods can ask for.

The kubelet keeps a resource that it does not manage itself, also across its own
restart, so no device plugin is needed.
"""

from __future__ import annotations

from collections.abc import Mapping

from testbed.client import ApiClient

RESOURCE = "nvidia.com/gpu"


def capacity_patch(count: int) -> Mapping[str, object]:
    """The merge patch of a node's status."""
    amount = {RESOURCE: str(count)}
    return {"status": {"capacity": amount, "allocatable": amount}}


def advertise(client: ApiClient, node_name: str, count: int) -> None:
    """Make a node claim this many GPUs."""
    client.merge(f"/api/v1/nodes/{node_name}/status", capacity_patch(count))
