from pathlib import Path

import pytest

from testbed.kubelet import is_ready, kubelet_config, proxy_config


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({}, False),
        ({"status": {}}, False),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, False),
        ({"status": {"conditions": [{"type": "MemoryPressure", "status": "True"}]}}, False),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, True),
    ],
)
def test_a_node_is_ready_when_its_condition_says_so(node, expected):
    assert is_ready(node) is expected


def test_each_kubelet_has_control_groups_of_its_own():
    one, two = (kubelet_config(node, Path("/ca"))["cgroupRoot"] for node in (1, 2))
    assert one != two


def test_a_kubelet_serves_only_the_holder_of_a_certificate():
    authentication = kubelet_config(1, Path("/ca"))["authentication"]
    assert authentication["anonymous"] == {"enabled": False}
    assert authentication["x509"] == {"clientCAFile": "/ca"}


def test_the_proxy_uses_nftables_under_the_nodes_name():
    config = proxy_config("node2", Path("/k"))
    assert (config["mode"], config["hostnameOverride"]) == ("nftables", "node2")
