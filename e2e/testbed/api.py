"""A real API server without nodes, for tests: etcd, API server, controller manager.

Needs no privilege and runs beside a test bed with nodes::

    with ApiServer() as api:
        config.load_kube_config(str(api.kubeconfig))
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from testbed import packages, programs
from testbed.client import ApiClient
from testbed.control_plane import (
    API_SERVER,
    CONTROLLERS,
    ETCD,
    LOOPBACK,
    SCHEDULER,
    ControlPlane,
    Endpoint,
    free_ports,
)
from testbed.errors import CannotRunHere
from testbed.layout import API, Layout, remove_tree
from testbed.processes import Processes
from testbed.scratch import own_instance, remove_orphans
from testbed.steps import Steps, silent

SERVICES, FIRST_SERVICE = "198.19.1.0/24", "198.19.1.1"


def capable(layout: Layout | None = None) -> str | None:
    """Why an API server cannot run on this machine, or None if it can."""
    if not sys.platform.startswith("linux"):
        return "cannot run here: it needs Linux; use a kind cluster and its kubeconfig"
    reason = packages.obstacle(packages.API_PROGRAMS) or programs.obstacle(
        layout or Layout.from_environment(), programs.KUBE
    )
    return f"cannot run here: {reason}" if reason else None


def prepare(layout: Layout, steps: Steps) -> None:
    """Make all that an API server needs, without starting one.

    Raises:
        CannotRunHere: The machine lacks something.
    """
    if reason := capable(layout):
        raise CannotRunHere(reason.removeprefix("cannot run here: "))
    remove_orphans(layout)
    packages.install(packages.API_PROGRAMS, steps)
    programs.build(layout, programs.KUBE, steps)


@dataclass
class ApiServer:
    """An API server with its store and controllers.

    As a context manager it lasts for the block. Used as such it compiles
    Kubernetes first, if that is not done yet, which takes minutes.

    Attributes:
        layout: Where its files lie.
        scheduler: Whether a scheduler runs too, so that pods become unschedulable.
        instance: Its name; unique to this process by default.
        steps: Told how long each step took.
    """

    layout: Layout = field(default_factory=Layout.from_environment)
    scheduler: bool = False
    instance: str = field(default_factory=lambda: own_instance(API))
    steps: Steps = field(default_factory=silent)

    def __post_init__(self) -> None:
        processes = Processes(self.layout.live(self.instance), self.layout.log(self.instance))
        self.plane = ControlPlane(self.layout, processes)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.plane.kubeconfig()

    @property
    def client(self) -> ApiClient:
        """URL, certificate authority and token of the administrator."""
        return self.plane.client()

    @property
    def kubectl(self) -> Path:
        """The kubectl of the same release."""
        return programs.program(self.layout, "kubectl")

    @property
    def components(self) -> tuple[str, ...]:
        """The programs that it consists of."""
        return (ETCD, API_SERVER, CONTROLLERS, *((SCHEDULER,) if self.scheduler else ()))

    def start(self) -> None:
        """Start it; does nothing when it runs already.

        Raises:
            CannotRunHere: The machine lacks something.
            TestbedError: A component did not start.
        """
        prepare(self.layout, self.steps)
        if self.plane.healthy(*self.components):
            return
        self.stop()
        port, etcd_port, peer_port = free_ports(3)
        with self.steps.timed("API server and controllers are ready"):
            endpoint = Endpoint(LOOPBACK, port, etcd_port, peer_port, SERVICES, FIRST_SERVICE)
            self.plane.start(endpoint, scheduler=self.scheduler)

    def stop(self) -> None:
        """End it and delete what it stored; its logs stay."""
        self.plane.processes.kill()
        remove_tree(self.plane.folder)

    def __enter__(self) -> ApiServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
