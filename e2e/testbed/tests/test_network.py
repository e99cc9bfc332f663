from itertools import combinations

from testbed.control_plane import MAX_NODES
from testbed.network import (
    DNS_SERVICE,
    FIRST_SERVICE,
    MACHINE,
    NODE_RANGE,
    POD_RANGE,
    SERVICE_RANGE,
    NodeNetwork,
    node_commands,
    outside_commands,
    switch_commands,
    wire_commands,
)

NODES = [NodeNetwork(number) for number in range(1, MAX_NODES + 1)]


def test_ranges_and_addresses_are_all_different():
    ranges = [NODE_RANGE, SERVICE_RANGE, *(node.pods for node in NODES)]
    assert not any(one.overlaps(other) for one, other in combinations(ranges, 2))
    assert len({MACHINE, DNS_SERVICE, FIRST_SERVICE, *(node.address for node in NODES)}) == MAX_NODES + 3


def test_every_pod_is_in_the_range_that_kube_proxy_calls_local():
    assert all(node.pods.subnet_of(POD_RANGE) for node in NODES)


def test_the_machine_is_not_in_that_range():
    """Else its own requests to a Service would not be masqueraded, and answers would take another way."""
    assert not POD_RANGE.overlaps(NODE_RANGE)


def test_a_node_knows_the_way_to_every_other_nodes_pods():
    first, second, third = NODES[:3]
    commands = node_commands(first, [second, third])
    assert f"address add {first.address}/24 dev eth0" in commands
    assert second.route() in commands
    assert third.route() in commands
    assert f"route replace default via {MACHINE}" in commands


def test_the_machine_reaches_pods_and_services():
    assert outside_commands(NODES[0]) == [
        f"route replace {NODES[0].pods} via {NODES[0].address}",
        f"route replace {SERVICE_RANGE} via {NODES[0].address}",
    ]


def test_wires_end_in_the_namespace_of_the_process():
    assert "netns 42" in switch_commands(42)[2]
    assert wire_commands(NODES[0], 43)[0].endswith("peer name eth0 netns 43")
