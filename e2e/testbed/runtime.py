"""containerd, the container runtime inside a node, and the images that it has unpacked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from testbed import base_image
from testbed.deadline import until
from testbed.errors import ProgramFailed
from testbed.execute import run
from testbed.namespaces import enter
from testbed.packages import CNI_PLUGINS
from testbed.processes import Processes

SOCKET = "/run/containerd/containerd.sock"
CTR = ("ctr", "--namespace", "k8s.io")
SERVES_PODS = "Start streaming server"
"""What containerd logs as its CRI service opens. Its socket answers earlier, and a kubelet that asks then ends."""


def runtime_config(folder: Path) -> str:
    """containerd's configuration; its root and state are the usual places, which are the node's own."""
    return f"""\
version = 2
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{base_image.name()}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_PLUGINS}"
conf_dir = "{folder}/cni.d"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
"""


def cni_config(pods: IPv4Network) -> str:
    """How a pod is wired to its node: one wire each, addresses from the node's range."""
    allocation = {
        "type": "host-local",
        "ranges": [[{"subnet": str(pods)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [{"type": "ptp", "ipMasq": False, "ipam": allocation}]
    return json.dumps({"cniVersion": "1.0.0", "name": "testbed", "plugins": plugins}, indent=1)


@dataclass(frozen=True)
class Runtime:
    """The runtime of one node.

    Attributes:
        processes: The instance that the node belongs to.
        process: The name of the runtime's process.
        pid: The process that holds the node's namespaces.
        folder: The node's live folder, for the configuration.
    """

    processes: Processes
    process: str
    pid: int
    folder: Path

    def start(self, pods: IPv4Network) -> None:
        """Start it with the images it had, and no container.

        Args:
            pods: The range of the pods' addresses.

        Raises:
            TestbedError: It did not come up.
        """
        (self.folder / "cni.d").mkdir()
        (self.folder / "cni.d/10-testbed.conflist").write_text(cni_config(pods))
        (self.folder / "containerd.toml").write_text(runtime_config(self.folder))
        self._run()
        if containers := self._ctr("containers", "list", "--quiet").split():
            self._forget(containers)

    def load(self, archive: Path) -> None:
        """Unpack an image archive.

        Raises:
            ProgramFailed: It is no image archive.
        """
        self._ctr("images", "import", str(archive))

    def images(self) -> list[str]:
        """The names of its images."""
        return self._ctr("images", "list", "--quiet").split()

    def _run(self) -> None:
        config = self.folder / "containerd.toml"
        self.processes.start(
            self.process, [*enter(self.pid, "net", "mount", "pid"), "containerd", "--config", config]
        )
        until("the container runtime", self._answers, see=str(self.processes.log(self.process)))

    def _answers(self) -> bool:
        self.processes.require(self.process)
        if SERVES_PODS not in self.processes.log(self.process).read_text(errors="replace"):
            return False
        try:
            self._ctr("version")
        except ProgramFailed:
            return False
        return True

    def _forget(self, containers: Sequence[str]) -> None:
        # Records of pods that ended with the node's last life; it reads them only when it starts.
        self._ctr("containers", "delete", *containers)
        self.processes.kill(self.process)
        self._run()

    def _ctr(self, *words: str) -> str:
        return run([*enter(self.pid, "net", "mount"), *CTR, *words])
