import socket
from pathlib import Path

import pytest

from testbed.certificates import Certificates
from testbed.control_plane import (
    LOOPBACK,
    Endpoint,
    api_server_flags,
    controller_manager_flags,
    etcd_flags,
    free_ports,
)

CERTIFICATES = Certificates(Path("/c"))


def endpoint(address):
    return Endpoint(address, 6443, 2379, 2380, "198.19.0.0/24", "198.19.0.1")


def test_free_ports_are_distinct_and_unused():
    ports = free_ports(3)
    assert len(set(ports)) == 3
    for port in ports:
        with socket.socket() as probe:
            probe.bind((LOOPBACK, port))


def test_the_store_answers_only_the_holder_of_a_certificate():
    flags = etcd_flags(endpoint(LOOPBACK), CERTIFICATES, Path("/d"))
    assert {"--client-cert-auth", "--peer-client-cert-auth", "--trusted-ca-file=/c/ca.crt"} <= set(flags)
    assert not any("http://" in flag for flag in flags)


def test_pods_are_told_the_servers_own_address():
    assert "--advertise-address=198.18.0.1" in api_server_flags(
        endpoint("198.18.0.1"), CERTIFICATES, Path("/t")
    )


def test_a_loopback_address_is_not_advertised():
    """The API server would try to publish it every ten seconds, each time refused by itself."""
    flags = api_server_flags(endpoint(LOOPBACK), CERTIFICATES, Path("/t"))
    assert "--endpoint-reconciler-type=none" in flags
    assert not any(flag.startswith("--advertise-address") for flag in flags)


@pytest.mark.parametrize("mode", ["Node", "RBAC"])
def test_authorization_is_that_of_a_real_cluster(mode):
    flags = api_server_flags(endpoint(LOOPBACK), CERTIFICATES, Path("/t"))
    (modes,) = [flag.partition("=")[2] for flag in flags if flag.startswith("--authorization-mode")]
    assert mode in modes.split(",")
    assert "AlwaysAllow" not in modes


def test_controllers_open_no_port():
    assert "--secure-port=0" in controller_manager_flags(Path("/k"), CERTIFICATES)
