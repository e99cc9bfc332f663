"""Addresses, and the wires between the machine and its nodes.

Each node has a network namespace of its own, and so has the switch between
them: the machine's firewall does not touch the traffic between nodes, and the
machine itself gets one interface and some routes, nothing else::

    machine ── mmd0 ┐
    node 1 ── eth0 ─┼─ switch
    node 2 ── eth0 ─┘

Pods hang on their node by one wire each (CNI plugin ``ptp``), so that every
packet passes the node's own stack and its kube-proxy rules. There is no way out
to the internet, and network policies are not enforced.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from testbed.errors import TestbedError
from testbed.namespaces import NETWORK_ONLY, hold, holder, ip_batch, write_inside
from testbed.processes import Processes

# Of 198.18.0.0/15, which is set apart for test networks (RFC 2544).
NODE_RANGE = IPv4Network("198.18.0.0/24")
POD_RANGE = IPv4Network("198.18.128.0/17")
SERVICE_RANGE = IPv4Network("198.19.0.0/24")
MACHINE = str(NODE_RANGE[1])
FIRST_SERVICE = str(SERVICE_RANGE[1])
DNS_SERVICE = str(SERVICE_RANGE[10])
INTERFACE = "mmd0"
SWITCH = "switch"


@dataclass(frozen=True)
class NodeNetwork:
    """The addresses of one node; nodes are numbered from 1."""

    number: int

    @property
    def address(self) -> str:
        """The node's own address."""
        return str(NODE_RANGE[10 + self.number])

    @property
    def pods(self) -> IPv4Network:
        """The range of its pods' addresses."""
        return list(POD_RANGE.subnets(new_prefix=24))[self.number]

    def route(self) -> str:
        """How everybody else reaches its pods."""
        return f"route replace {self.pods} via {self.address}"


def switch_commands(machine_pid: int) -> list[str]:
    """Commands in the switch's namespace: the switch, and a wire to the machine."""
    return [
        "link add bridge type bridge",
        "link set bridge up",
        f"link add machine type veth peer name {INTERFACE} netns {machine_pid}",
        "link set machine master bridge up",
    ]


def machine_commands() -> list[str]:
    """Commands on the machine: its address."""
    return [f"address add {MACHINE}/{NODE_RANGE.prefixlen} dev {INTERFACE}", f"link set {INTERFACE} up"]


def wire_commands(node: NodeNetwork, node_pid: int) -> list[str]:
    """Commands in the switch's namespace: a wire to a node."""
    port = f"node{node.number}"
    return [
        f"link add {port} type veth peer name eth0 netns {node_pid}",
        f"link set {port} master bridge up",
    ]


def node_commands(node: NodeNetwork, others: list[NodeNetwork]) -> list[str]:
    """Commands in a node's namespace: its address, and the ways to everybody else."""
    return [
        "link set lo up",
        f"address add {node.address}/{NODE_RANGE.prefixlen} dev eth0",
        "link set eth0 up",
        f"route replace default via {MACHINE}",
        *(other.route() for other in others),
    ]


def outside_commands(node: NodeNetwork) -> list[str]:
    """Commands on the machine: the ways to a node's pods and, through it, to Services."""
    return [node.route(), f"route replace {SERVICE_RANGE} via {node.address}"]


def connected(processes: Processes) -> bool:
    """Whether the switch runs and the machine hangs on it."""
    return holder(processes, SWITCH) is not None and interface_exists()


def interface_exists() -> bool:
    """Whether the machine has the interface."""
    return Path(f"/sys/class/net/{INTERFACE}").exists()


def require_free() -> None:
    """Check that no other test bed has the interface.

    Raises:
        TestbedError: One has.
    """
    if interface_exists():
        raise TestbedError(
            f"interface {INTERFACE} exists: another test bed runs on this machine; "
            "take it down with the MMDISAGG_TESTBED_DIR that it was started with"
        )


def connect(processes: Processes, machine_pid: int) -> None:
    """Start the switch and connect the machine, that is the namespace of a process, to it."""
    ip_batch(switch_commands(machine_pid), hold(processes, SWITCH, NETWORK_ONLY))
    ip_batch(machine_commands())


def connect_node(processes: Processes, node: NodeNetwork, node_pid: int, highest: int) -> None:
    """Connect a node to the switch.

    Args:
        processes: The instance.
        node: The node's addresses.
        node_pid: The process that holds its namespaces.
        highest: The highest number that any node may have.

    Raises:
        TestbedError: The switch does not run.
    """
    switch_pid = holder(processes, SWITCH)
    if switch_pid is None:
        raise TestbedError("the switch between the nodes has ended; take the test bed down and up again")
    others = [NodeNetwork(number) for number in range(1, highest + 1) if number != node.number]
    ip_batch(wire_commands(node, node_pid), switch_pid)
    ip_batch(node_commands(node, others), node_pid)
    write_inside(node_pid, "/proc/sys/net/ipv4/ip_forward", "1")
    ip_batch(outside_commands(node))
