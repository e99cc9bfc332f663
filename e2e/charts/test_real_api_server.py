"""The charts against a real API server: installs, upgrades, uninstalls, and rights that are enough."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml
from chart import ROOT

from testbed import deadline

CRD = "multimodaldisaggdeployments.mmdisagg.io"
RESOURCE = "multimodaldisaggdeployments"
until = partial(deadline.until, pause=0.2)
PRESETS = sorted((ROOT / "charts/mmdisagg/presets").glob("*.yaml"))
TOPOLOGIES = ("E/P/D", "E/PD", "EP/D", "PD")
# Without nodes nothing runs: one operator of the tests' own is started where one is needed.
ASLEEP = {"replicas": 0}


@dataclass(frozen=True)
class Kubectl:
    program: Path
    kubeconfig: Path

    def __call__(self, *words, stdin=None, fails=False):
        command = [self.program, f"--kubeconfig={self.kubeconfig}", *map(str, words)]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        assert fails or done.returncode == 0, done.stderr
        return done.stdout

    def get(self, *words):
        return json.loads(self("get", *words, "--output=json"))

    def exists(self, *words):
        return bool(self("get", *words, "--ignore-not-found", "--output=name").strip())


@pytest.fixture(scope="session")
def kubectl(api_server):
    return Kubectl(api_server.kubectl, api_server.kubeconfig)


@pytest.fixture
def namespace(kubectl, request):
    """A namespace that starts without a CRD, releases or resources, and leaves none."""
    name = f"charts-{abs(hash(request.node.name)) % 10**6}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")
    kubectl("delete", "crd", CRD, "--ignore-not-found")
    kubectl("delete", "clusterrole,clusterrolebinding", "--selector=app.kubernetes.io/instance=op")


@pytest.fixture
def operator(live_helm, operator_chart, namespace):
    """Installs and upgrades the operator's chart."""

    def act(verb="install", values=None, folder=operator_chart.folder):
        words = (verb, "op", folder, f"--namespace={namespace}")
        live_helm.must(*words, values={**ASLEEP, **(values or {})})

    return act


@pytest.fixture
def workers(live_helm, workers_chart, namespace):
    def install(values, *words, release="qwen"):
        live_helm.must(
            "install", release, workers_chart.folder, f"--namespace={namespace}", *words, values=values
        )

    return install


def served(kubectl):
    kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=30s")


def test_every_preset_is_taken_in_every_topology(operator, workers_chart, kubectl, namespace):
    """Given the CRD's own rules, defaults and patterns, as only an API server checks them."""
    operator()
    served(kubectl)
    rendered = []
    for preset in PRESETS:
        for number, topology in enumerate(TOPOLOGIES):
            (one,) = workers_chart.render({"preset": preset.stem, "topology": topology})
            one["metadata"] |= {"name": f"{preset.stem.replace('.', '-')}-{number}", "namespace": namespace}
            rendered.append(one)
    applied = kubectl("apply", "--dry-run=server", "--filename=-", stdin=yaml.safe_dump_all(rendered))
    assert applied.count("created (server dry run)") == len(PRESETS) * len(TOPOLOGIES)


def test_a_rule_that_values_cannot_check_is_named_by_the_api_server(
    operator, live_helm, workers_chart, kubectl, namespace
):
    operator()
    served(kubectl)
    values = {"preset": "llava-1.5-7b", "decode": {"contract": "MetadataOnly"}}
    words = ("install", "bad", workers_chart.folder, f"--namespace={namespace}")
    done = live_helm.run(*words, values=values)
    assert done.returncode != 0
    assert "MetadataOnly is impossible for LLaVA" in done.stderr


def test_the_workers_chart_makes_changes_and_removes_a_resource(
    operator, workers, live_helm, workers_chart, kubectl, namespace
):
    operator()
    served(kubectl)
    workers({"preset": "qwen2.5-vl-3b"})
    made = kubectl.get("mmdd", "qwen", f"--namespace={namespace}")["spec"]
    assert made["encode"]["shmSize"] == "8Gi"
    words = ("upgrade", "qwen", workers_chart.folder, f"--namespace={namespace}")
    live_helm.must(*words, values={"preset": "qwen2.5-vl-3b", "topology": "EP/D"})
    assert "encode" not in kubectl.get("mmdd", "qwen", f"--namespace={namespace}")["spec"]
    live_helm.must("uninstall", "qwen", f"--namespace={namespace}")
    assert not kubectl.exists("mmdd", "qwen", f"--namespace={namespace}")


def test_an_upgrade_adds_a_field_to_the_crd(operator, workers, operator_chart, kubectl, namespace, tmp_path):
    """Given a resource of the old CRD, which stays."""
    operator()
    served(kubectl)
    workers({"preset": "qwen2.5-vl-3b"})
    newer = tmp_path / "chart"
    shutil.copytree(operator_chart.folder, newer)
    (file,) = (newer / "files").glob("*.yaml")
    crd = yaml.safe_load(file.read_text())
    field = {"type": "string", "default": "none"}
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["novelty"] = (
        field
    )
    file.write_text(yaml.safe_dump(crd, sort_keys=False))
    operator("upgrade", folder=newer)
    until(
        "the field's default",
        lambda: kubectl.get("mmdd", "qwen", f"--namespace={namespace}")["spec"].get("novelty") == "none",
    )


def test_uninstall_keeps_the_crd_and_a_new_release_takes_it_over(
    operator, workers, live_helm, kubectl, namespace
):
    operator()
    served(kubectl)
    workers({"preset": "qwen2.5-vl-3b"})
    live_helm.must("uninstall", "op", f"--namespace={namespace}")
    assert kubectl.exists("crd", CRD)
    assert kubectl.exists("mmdd", "qwen", f"--namespace={namespace}")
    assert not kubectl.exists("deployment", f"--namespace={namespace}")
    operator()
    assert kubectl.exists("mmdd", "qwen", f"--namespace={namespace}")


def test_uninstall_removes_the_crd_when_asked_to(operator, live_helm, kubectl, namespace):
    operator(values={"crds": {"keep": False}})
    served(kubectl)
    live_helm.must("uninstall", "op", f"--namespace={namespace}", "--wait")
    assert not kubectl.exists("crd", CRD)
    assert not kubectl.exists("clusterrole", "--selector=app.kubernetes.io/instance=op")


@pytest.fixture
def started(kubectl, namespace, tmp_path):
    """Starts the operator with the arguments of the installed Deployment, as its service account."""
    running = []

    def start():
        only = kubectl.get("deployment", f"--namespace={namespace}")["items"][0]["spec"]["template"]["spec"]
        account, arguments = only["serviceAccountName"], only["containers"][0]["args"]
        token = kubectl("create", "token", account, f"--namespace={namespace}").strip()
        config = yaml.safe_load(kubectl.kubeconfig.read_text())
        for user in config["users"]:
            user["user"] = {"token": token}
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        told = [word for word in arguments if not word.startswith("--port=")]
        command = [sys.executable, "-m", "mmdisagg_operator.main", *told, "--port=0"]
        own = {"KUBECONFIG": str(tmp_path / "kubeconfig"), "POD_NAMESPACE": namespace, "POD_NAME": "test"}
        with open(tmp_path / "log", "w") as log:
            running.append(subprocess.Popen(command, env={**os.environ, **own}, stderr=log))
        return account

    yield start
    for process in running:
        process.terminate()
        process.wait(20)
    log = (tmp_path / "log").read_text()
    assert "orbidden" not in log, log


@pytest.mark.parametrize("mode", ["cluster", "namespaced"])
def test_the_charts_rights_are_enough(
    operator, workers, live_helm, workers_chart, kubectl, namespace, started, mode
):
    """Given the operator as the chart's service account.

    It makes, changes, repairs and prunes children, and writes the status.
    """
    operator(values={"namespaces": [] if mode == "cluster" else [namespace]})
    served(kubectl)
    account = started()
    workers({"preset": "qwen2.5-vl-3b"})
    here = f"--namespace={namespace}"
    until(
        "children",
        lambda: (
            kubectl.exists("deployment", "qwen-encode", here)
            and kubectl.exists("deployment", "qwen-router", here)
        ),
    )
    until("a status", lambda: kubectl.get("mmdd", "qwen", here).get("status", {}).get("conditions"))
    kubectl("delete", "deployment", "qwen-decode", here)
    until("the repair", lambda: kubectl.exists("deployment", "qwen-decode", here))
    values = {"preset": "qwen2.5-vl-3b", "topology": "EP/D", "engine": {"maxModelLen": 4321}}
    live_helm.must("upgrade", "qwen", workers_chart.folder, here, values=values)
    until("pruning", lambda: not kubectl.exists("deployment", "qwen-encode", here))
    until("the change", lambda: "4321" in kubectl("get", "deployment", "qwen-decode", here, "--output=json"))
    seen = {c["type"]: c["reason"] for c in kubectl.get("mmdd", "qwen", here)["status"]["conditions"]}
    assert not set(seen.values()) & {"ApplyFailed", "Rejected", "Forbidden"}, seen
    who = f"--as=system:serviceaccount:{namespace}:{account}"

    def may(*words):
        return kubectl("auth", "can-i", *words, who, fails=True).strip() == "yes"

    assert not may("list", "secrets", here)
    assert not may("delete", "secrets", here)
    assert not may("delete", RESOURCE, here)
    assert not may("list", "namespaces")
    assert may("get", RESOURCE, "--namespace=kube-system") == (mode == "cluster")
