"""A node: namespaces with a container runtime, a kubelet and a kube-proxy inside.

Pods are real containers. The node sees the machine's files (so hostPath works)
except for a few folders on which kubelets and runtimes insist; of those every
node has its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed import base_image, cgroups, kubelet, network, programs
from testbed.control_plane import MAX_NODES, ControlPlane
from testbed.deadline import until
from testbed.errors import TestbedError
from testbed.layout import remove_tree
from testbed.namespaces import WHOLE_NODE, enter, hold, holder, mount_inside
from testbed.network import NodeNetwork
from testbed.runtime import Runtime
from testbed.steps import Steps

# Folders that each node has for itself, by their name in the node's live folder.
OWN_FOLDERS = {
    "run": Path("/run/containerd"),
    "kubelet": Path("/var/lib/kubelet"),
    "cni": Path("/var/lib/cni"),
    "pod-logs": Path("/var/log/pods"),
    "container-logs": Path("/var/log/containers"),
}
IMAGE_STORE = Path("/var/lib/containerd")
NODE_FOLDERS = (*OWN_FOLDERS.values(), IMAGE_STORE)
"""All that must exist on the machine before a node starts."""


@dataclass(frozen=True)
class Node:
    """One node of the cluster, numbered from 1."""

    plane: ControlPlane
    number: int

    @property
    def name(self) -> str:
        """Its name in the cluster, and that of its holding process."""
        return f"node{self.number}"

    @property
    def network(self) -> NodeNetwork:
        """Its addresses."""
        return NodeNetwork(self.number)

    @property
    def folder(self) -> Path:
        """Its files; gone when the test bed is down."""
        return self.plane.folder / self.name

    def process(self, part: str) -> str:
        """The name of the process of one of its parts."""
        return f"{self.name}-{part}"

    @property
    def processes(self) -> tuple[str, ...]:
        """The names of all its processes."""
        return (self.name, *map(self.process, ("containerd", "kubelet", "kube-proxy")))

    def running(self) -> bool:
        """Whether it came up wholly once and all its processes still run."""
        return self._came_up.exists() and self.plane.processes.running().keys() >= set(self.processes)

    def runtime(self) -> Runtime | None:
        """Its container runtime, or None when the node does not run."""
        pid = holder(self.plane.processes, self.name)
        return None if pid is None else self._runtime(pid)

    def start(self, steps: Steps) -> None:
        """Start it from nothing and return when the cluster calls it ready.

        Raises:
            TestbedError: A part did not start.
        """
        self.stop()
        self.folder.mkdir()
        cgroups.create(self.number)
        pid = hold(self.plane.processes, self.name, WHOLE_NODE)
        network.connect_node(self.plane.processes, self.network, pid, MAX_NODES)
        self._give_own_folders(pid)
        self._start_runtime(pid, steps)
        with steps.timed(f"{self.name} is ready"):
            self._start_kubelet(pid)
            self._start_proxy(pid)
            self._await_ready()
        self._came_up.touch()

    def stop(self) -> None:
        """End it with all its pods and forget its files; its images stay."""
        self.plane.processes.kill(*self.processes)
        remove_tree(self.folder)

    def load(self, archive: Path) -> None:
        """Unpack an image archive for its pods.

        Raises:
            TestbedError: It does not run, or the file is no image archive.
        """
        if (runtime := self.runtime()) is None:
            raise TestbedError(f"{self.name} does not run; bring the test bed up")
        runtime.load(archive)

    def _runtime(self, pid: int) -> Runtime:
        return Runtime(self.plane.processes, self.process("containerd"), pid, self.folder)

    @property
    def _came_up(self) -> Path:
        return self.folder / "came-up"

    def _give_own_folders(self, pid: int) -> None:
        sources = {self.folder / name: target for name, target in OWN_FOLDERS.items()}
        sources[self.plane.layout.node_images(self.number)] = IMAGE_STORE
        for source, target in sources.items():
            source.mkdir(parents=True, exist_ok=True)
            mount_inside(pid, source, target)

    def _start_runtime(self, pid: int, steps: Steps) -> None:
        runtime = self._runtime(pid)
        with steps.timed(f"container runtime of {self.name}"):
            runtime.start(self.network.pods)
        if base_image.name() not in runtime.images():
            with steps.timed(f"unpacked the base image on {self.name}"):
                runtime.load(base_image.archive(self.plane.layout))

    def _start_kubelet(self, pid: int) -> None:
        authority = self.plane.certificates.certificate("ca")
        config = self._write("kubelet.json", kubelet.kubelet_config(self.number, authority))
        flags = [
            f"--config={config}",
            f"--kubeconfig={self.plane.node_kubeconfig(self.number)}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.network.address}",
        ]
        self._start_inside(pid, "kubelet", flags)

    def _start_proxy(self, pid: int) -> None:
        credentials = self.plane.kubeconfig("system:kube-proxy")
        config = self._write("kube-proxy.json", kubelet.proxy_config(self.name, credentials))
        self._start_inside(pid, "kube-proxy", [f"--config={config}"])

    def _start_inside(self, pid: int, program: str, flags: Sequence[str]) -> None:
        path = programs.program(self.plane.layout, program)
        self.plane.processes.start(self.process(program), [*enter(pid, "net", "mount", "pid"), path, *flags])

    def _await_ready(self) -> None:
        client, processes = self.plane.client(), self.plane.processes

        def ready() -> bool:
            processes.require(*self.processes)
            return kubelet.is_ready(client.get(f"/api/v1/nodes/{self.name}") or {})

        until(self.name, ready, seconds=120, see=str(processes.log(self.process("kubelet"))))

    def _write(self, name: str, content: Mapping[str, object]) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(content, indent=1))
        return path
