import json
import tomllib
from ipaddress import IPv4Network
from pathlib import Path

from testbed import base_image
from testbed.runtime import cni_config, runtime_config


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
