"""Ports that stay free until they are used."""

import socket
from pathlib import Path

import pytest

from mmdisagg_cli.ports import LOOPBACK, NoFreePort, PortPool, is_free


def listener(number: int = 0, address: str = LOOPBACK) -> socket.socket:
    return socket.create_server((address, number))


def test_a_reserved_port_is_given_to_nobody_else(tmp_path: Path) -> None:
    port = PortPool(tmp_path).take()
    with pytest.raises(NoFreePort, match="choose another with --port"):
        PortPool(tmp_path).take_exactly(port.number)
    with listener(port.number):
        pass
    port.release()
    PortPool(tmp_path).take_exactly(port.number).release()


def test_ports_come_from_below_the_kernels_range_for_connections(tmp_path: Path) -> None:
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(PortPool(tmp_path).take().number < first_ephemeral for _ in range(20))


@pytest.mark.parametrize("address", [LOOPBACK, "0.0.0.0"])
def test_a_port_that_somebody_listens_on_is_not_free(tmp_path: Path, address: str) -> None:
    with listener(address=address) as server:
        number = server.getsockname()[1]
        assert not is_free(number)
        with pytest.raises(NoFreePort):
            PortPool(tmp_path).take_exactly(number)
        assert PortPool(tmp_path).take_preferred(number).number != number
    assert is_free(number)
