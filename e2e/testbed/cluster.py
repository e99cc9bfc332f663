"""The whole test bed: a control plane, DNS and nodes, brought up and taken down."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from testbed import (
    base_image,
    borrowed,
    cgroups,
    dns,
    gpus,
    images,
    network,
    packages,
    probe,
    programs,
    sysctls,
)
from testbed.control_plane import (
    API_SERVER,
    CONTROLLERS,
    ETCD,
    MAX_NODES,
    SCHEDULER,
    ControlPlane,
    Endpoint,
    free_ports,
)
from testbed.deadline import until
from testbed.errors import CannotRunHere, TestbedError
from testbed.layout import CLUSTER, Layout, remove_tree
from testbed.node import NODE_FOLDERS, Node
from testbed.processes import Processes
from testbed.scratch import remove_orphans, scratch
from testbed.steps import Steps

COMPONENTS = (ETCD, API_SERVER, CONTROLLERS, SCHEDULER, network.SWITCH, dns.PROCESS)
API_PORT = 6443
SYSCTLS, BORROWED = "sysctls.json", "borrowed"


@dataclass(frozen=True)
class Cluster:
    """The one cluster with nodes that a machine can have.

    Attributes:
        layout: Where its files lie.
        steps: Told how long each step took.
    """

    layout: Layout
    steps: Steps

    @property
    def plane(self) -> ControlPlane:
        """Its control plane."""
        return ControlPlane(self.layout, Processes(self.layout.live(CLUSTER), self.layout.log(CLUSTER)))

    def nodes(self) -> list[Node]:
        """The nodes that run."""
        every = (Node(self.plane, number) for number in range(1, MAX_NODES + 1))
        return [node for node in every if node.running()]

    def prepare(self) -> None:
        """Make all that it needs, without starting anything.

        Raises:
            CannotRunHere: The machine lacks something.
            TestbedError: A build failed.
        """
        if reason := probe.capable(self.layout):
            raise CannotRunHere(reason.removeprefix("cannot run here: "))
        remove_orphans(self.layout)
        packages.install(packages.CLUSTER_PROGRAMS, self.steps)
        base_image.make(self.layout, self.steps)
        programs.build(self.layout, programs.KUBE, self.steps)
        programs.build(self.layout, programs.TOOLS, self.steps)

    def up(self, nodes: int, gpus_each: int) -> None:
        """Bring it up, or what is missing of it; more nodes than asked for are left alone.

        Args:
            nodes: How many nodes, at most ``MAX_NODES``.
            gpus_each: How many GPUs each node pretends to have.

        Raises:
            CannotRunHere: The machine lacks something.
            TestbedError: A part did not start.
        """
        self.prepare()
        with self.layout.locked(CLUSTER):
            if not self._control_plane_is_up():
                self._down()
                self._start_control_plane()
            self._start_nodes([Node(self.plane, number) for number in range(1, nodes + 1)], gpus_each)
        self.steps.total(f"{len(self.nodes())} nodes with {gpus_each} GPUs each")

    def down(self) -> None:
        """Take it down, whatever state it is in; programs, images and logs stay.

        Raises:
            TestbedError: Something does not go away.
        """
        with self.layout.locked(CLUSTER), self.steps.timed("the cluster is down"):
            self._down()

    def load(self, archive: Path, what: str) -> None:
        """Unpack an image archive on every node.

        Args:
            archive: The file.
            what: Its name in the printed line.

        Raises:
            TestbedError: No node runs.
            ProgramFailed: The file is no image archive.
        """
        if not (nodes := self.nodes()):
            raise TestbedError("no node runs to load an image on; bring the test bed up first")
        with self.steps.timed(f"loaded {what} on {', '.join(node.name for node in nodes)}"):
            at_once(lambda node: node.load(archive), nodes)

    def build(self, name: str, folder: Path, dockerfile: Path, arguments: Sequence[str]) -> None:
        """Build an image and load it on every node.

        Args:
            name: The image's name and tag, ``localhost/NAME:TAG``.
            folder: The build context.
            dockerfile: The Dockerfile.
            arguments: Build arguments, ``NAME=VALUE``.

        Raises:
            TestbedError: The name has another form, or no node runs.
            ProgramFailed: The build failed.
        """
        with scratch(self.layout) as place:
            with self.steps.timed(f"built {name}"):
                archive = images.build(self.layout, place, name, folder, dockerfile, arguments)
            self.load(archive, name)

    def whole(self) -> bool:
        """Whether the control plane and at least one node run."""
        return self._control_plane_is_up() and bool(self.nodes())

    def _control_plane_is_up(self) -> bool:
        return self.plane.healthy(*COMPONENTS) and network.connected(self.plane.processes) and dns.answers()

    def _start_control_plane(self) -> None:
        network.require_free()
        remove_tree(self.layout.log(CLUSTER))
        plane = self.plane
        plane.folder.mkdir(parents=True)
        with self.steps.timed("control plane is ready"):
            network.connect(plane.processes, os.getpid())
            etcd_port, peer_port = free_ports(2)
            services = str(network.SERVICE_RANGE)
            endpoint = Endpoint(
                network.MACHINE, API_PORT, etcd_port, peer_port, services, network.FIRST_SERVICE
            )
            plane.start(endpoint, scheduler=True)
        with self.steps.timed("DNS is ready"):
            dns.start(plane)

    def _start_nodes(self, nodes: Sequence[Node], gpus_each: int) -> None:
        sysctls.remember(self.plane.folder / SYSCTLS)
        for folder in NODE_FOLDERS:
            borrowed.borrow(self.plane.folder / BORROWED, folder)
        at_once(lambda node: node.start(self.steps), [node for node in nodes if not node.running()])
        for node in nodes:
            gpus.advertise(self.plane.client(), node.name, gpus_each)

    def _down(self) -> None:
        plane = self.plane
        plane.processes.kill()
        until("end of the network", lambda: not self._owns_interface(), seconds=30)
        cgroups.remove()
        sysctls.restore(plane.folder / SYSCTLS)
        borrowed.give_back(plane.folder / BORROWED)
        remove_tree(plane.folder)

    def _owns_interface(self) -> bool:
        """Whether the interface is still there and is ours: the kernel removes it a moment after the switch."""
        return self.plane.folder.exists() and network.interface_exists()


def at_once(work: Callable[[Node], None], nodes: Sequence[Node]) -> None:
    """Do something with all nodes at the same time; the first error is raised when all are done."""
    with ThreadPoolExecutor(max_workers=MAX_NODES) as pool:
        for _ in pool.map(work, nodes):
            pass


def purge(layout: Layout) -> None:
    """Delete everything that is kept: programs, images, logs. The next ``up`` makes them again."""
    remove_orphans(layout)
    remove_tree(layout.root)
