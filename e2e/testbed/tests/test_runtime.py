import json
import tomllib
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from testbed import base_image, runtime
from testbed.processes import Processes
from testbed.runtime import Runtime, cni_config, runtime_config


def test_the_runtime_keeps_its_files_in_the_nodes_folder():
    config = tomllib.loads(runtime_config(Path("/live/node1")))
    plugins = config["plugins"]
    assert plugins["io.containerd.grpc.v1.cri"]["cni"]["conf_dir"] == "/live/node1/cni.d"
    assert plugins["io.containerd.internal.v1.opt"]["path"] == "/live/node1/opt"
    assert plugins["io.containerd.grpc.v1.cri"]["sandbox_image"] == base_image.name()


def test_pods_get_addresses_of_their_nodes_range_and_are_not_masqueraded():
    (plugin,) = json.loads(cni_config(IPv4Network("198.18.129.0/24")))["plugins"]
    assert plugin["ipam"]["ranges"] == [[{"subnet": "198.18.129.0/24"}]]
    assert plugin["ipMasq"] is False


@pytest.mark.parametrize(
    ("logged", "up"),
    [
        ('msg=serving... address=/run/containerd/containerd.sock"', False),
        ('msg=serving...\nlevel=info msg="Start streaming server"\n', True),
    ],
)
def test_the_runtime_is_up_when_it_takes_pods_and_not_when_its_socket_answers(
    tmp_path, monkeypatch, logged, up
):
    monkeypatch.setattr(runtime, "run", lambda words: "version")
    monkeypatch.setattr(Processes, "require", lambda self, *names: None)
    node = Runtime(Processes(tmp_path, tmp_path), "node1-containerd", 1, tmp_path)
    node.processes.log("node1-containerd").write_text(logged)
    assert node._answers() is up
