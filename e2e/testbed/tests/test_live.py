"""The machine's cluster goes up, does what a cluster does, and comes down without a trace.

Each test starts and ends with the cluster down, so this runs only when asked
for: ``MMDISAGG_TESTBED_LIVE=1``.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import testbed
from testbed import base_image, cgroups, network, programs, sysctls
from testbed.cluster import Cluster
from testbed.deadline import until
from testbed.execute import run
from testbed.gpus import RESOURCE
from testbed.layout import CLUSTER, Layout
from testbed.node import NODE_FOLDERS
from testbed.steps import silent

pytestmark = pytest.mark.timeout(1800)
REQUEST = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=2).read().decode())"
SERVER = "mkdir /site; echo I am $0 > /site/index.html; exec python3 -m http.server --directory /site 8000"


@pytest.fixture(scope="module")
def layout():
    if os.environ.get("MMDISAGG_TESTBED_LIVE") != "1":
        pytest.skip("it takes the machine's cluster up and down: set MMDISAGG_TESTBED_LIVE=1")
    layout = Layout.from_environment()
    if reason := testbed.capable(layout):
        pytest.skip(reason)
    if Cluster(layout, silent()).whole():
        pytest.skip("a cluster is up: take it down first (python -m testbed down)")
    Cluster(layout, silent()).prepare()
    return layout


@pytest.fixture
def bare(layout):
    """A cluster that is down, and is taken down after the test."""
    cluster = Cluster(layout, silent())
    cluster.down()
    yield cluster
    cluster.down()


@pytest.fixture
def kubectl(layout):
    program = programs.program(layout, "kubectl")
    kubeconfig = Cluster(layout, silent()).plane.kubeconfig()
    return lambda *words, stdin="": run([program, f"--kubeconfig={kubeconfig}", *words], stdin=stdin)


def traces(layout):
    """All that a cluster changes on the machine."""
    return {
        "processes": Cluster(layout, silent()).plane.processes.running(),
        "mounts": sorted(line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()),
        "interfaces": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "routes": Path("/proc/net/route").read_text(),
        "tables": run(["nft", "list", "tables"]),
        "control groups": cgroups.present(),
        "settings": {
            name: (sysctls.SYSCTLS / name).read_text()
            for name in (*sysctls.CHANGED_BY_KUBELET, "net/ipv4/ip_forward")
        },
        "folders": [folder for folder in NODE_FOLDERS if folder.exists()],
        "files": layout.live(CLUSTER).exists(),
    }


def pod(name, node=None, command=None, limits=None):
    """A pod of the base image."""
    container = {
        "name": "main",
        "image": base_image.name(),
        "imagePullPolicy": "Never",
        "resources": {"limits": limits or {}},
        **({"command": command} if command else {}),
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    metadata = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def service(name, app, port):
    """A Service of the pod ``app``; of another name, since a pod knows itself by its own without DNS."""
    spec = {"selector": {"app": app}, "ports": [{"port": 80, "targetPort": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def apply(kubectl, *objects):
    kubectl("apply", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def test_down_leaves_nothing(bare, kubectl):
    before = traces(bare.layout)
    bare.up(nodes=2, gpus_each=4)
    pods = [pod(f"on-{node}", node) for node in ("node1", "node2")]
    for one in pods:
        one["spec"]["volumes"] = [{"name": "memory", "emptyDir": {"medium": "Memory"}}]
    apply(kubectl, *pods, service("first", "on-node1", 8000))
    kubectl("wait", "--for=condition=Ready", "pod/on-node1", "pod/on-node2", "--timeout=60s")
    assert traces(bare.layout) != before
    bare.down()
    assert traces(bare.layout) == before


@pytest.mark.parametrize("last", ["switch", "kube-apiserver", "node1", "node1-containerd", "node2-kubelet"])
def test_down_leaves_nothing_after_up_was_killed(bare, last):
    """Given an ``up`` that is killed as soon as one of its programs runs."""
    before = traces(bare.layout)
    paths = {"PYTHONPATH": str(Path(testbed.__file__).parents[1])}
    command = [sys.executable, "-m", "testbed", "up", "--nodes", "2"]
    with subprocess.Popen(command, env={**os.environ, **paths}, stdout=subprocess.DEVNULL) as up:
        until(last, lambda: last in bare.plane.processes.running(), seconds=120)
        up.send_signal(signal.SIGKILL)
    bare.down()
    assert traces(bare.layout) == before


def test_up_completes_what_a_killed_one_began_and_repeats_at_no_cost(bare):
    bare.up(nodes=1, gpus_each=4)
    bare.plane.processes.kill("node1-kubelet")
    assert not bare.whole()
    bare.up(nodes=2, gpus_each=4)
    assert [node.name for node in bare.nodes()] == ["node1", "node2"]
    running, began = bare.plane.processes.running(), time.monotonic()
    bare.up(nodes=2, gpus_each=4)
    assert bare.plane.processes.running() == running
    assert time.monotonic() - began < 10


def test_a_name_of_a_service_leads_from_one_node_to_the_other(bare, kubectl):
    bare.up(nodes=2, gpus_each=4)
    pods = [pod(f"on-{node}", node, ["sh", "-c", SERVER, node]) for node in ("node1", "node2")]
    apply(kubectl, *pods, service("first", "on-node1", 8000), service("second", "on-node2", 8000))
    kubectl("wait", "--for=condition=Ready", "pod/on-node1", "pod/on-node2", "--timeout=60s")

    def answers(client, url):
        try:
            return kubectl("exec", client, "--", "python3", "-c", REQUEST, url)
        except testbed.ProgramFailed:  # the server, or the nodes' rules for its Service, are a moment behind
            return ""

    for client, host, node in (
        ("on-node1", "second", "node2"),
        ("on-node1", "first", "node1"),
        ("on-node2", "first.default.svc.cluster.local", "node1"),
    ):
        seen = f"I am {node}"
        until(seen, lambda c=client, h=host, s=seen: s in answers(c, f"http://{h}"), seconds=20)


def test_the_gpus_of_a_node_are_counted(bare, kubectl):
    bare.up(nodes=2, gpus_each=4)
    apply(kubectl, *(pod(f"gpu{number}", "node1", limits={RESOURCE: 1}) for number in range(1, 6)))

    def phases():
        listed = json.loads(kubectl("get", "pods", "--output=json"))["items"]
        return sorted(item["status"]["phase"] for item in listed)

    until("four pods", lambda: phases() == ["Pending", *["Running"] * 4], seconds=60)
    events = kubectl("get", "events", "--field-selector=reason=FailedScheduling")
    assert f"1 Insufficient {RESOURCE}" in events


def test_the_machine_keeps_its_network_to_itself(bare):
    bare.up(nodes=1, gpus_each=0)
    added = {path.name for path in Path("/sys/class/net").iterdir()}
    bare.down()
    added -= {path.name for path in Path("/sys/class/net").iterdir()}
    assert added == {network.INTERFACE}
