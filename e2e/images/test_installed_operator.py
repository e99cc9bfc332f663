"""The operator's chart and image together: installed by Helm, it runs, leads and can be measured."""

import json
import re
import subprocess
import time

import pytest
from restricted_pods import ROOT, SOME_USER

CHART = ROOT / "charts/mmdisagg-operator"


@pytest.fixture
def installed(helm, pods, image, tmp_path):
    """Installed for the tests' own namespace, as a user that no password file knows; the CRD may be there already."""
    has_crd = "multimodaldisaggdeployments" in pods.cluster("get", "crd", "--output=name")
    registry, tag = re.fullmatch(r"(.*)/mmdisagg-operator:(.*)", image("operator")).groups()
    values = {
        "registry": registry,
        "image": {"tag": tag},
        "namespaces": [pods.namespace],
        "crds": {"enabled": not has_crd, "keep": False},
        "podSecurityContext": {"runAsUser": SOME_USER},
    }

    def run(*words):
        command = [*helm, *words, f"--namespace={pods.namespace}"]
        done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    run("install", "op", str(CHART), "--values=-", "--wait", "--timeout=90s")
    yield "op-mmdisagg-operator"
    run("uninstall", "op")


def test_it_runs_and_takes_the_lease(installed, pods):
    path = f"/api/v1/namespaces/{pods.namespace}/services/{installed}-metrics:http/proxy/metrics"
    deadline = time.monotonic() + 30
    while "mmdisagg_operator_leader 1.0" not in pods.cluster("get", "--raw", path):
        assert time.monotonic() < deadline, pods.cluster("logs", f"deploy/{installed}", "-n", pods.namespace)
        time.sleep(0.5)
    held = json.loads(pods.cluster("get", "lease", installed, "-n", pods.namespace, "--output=json"))
    assert held["spec"]["holderIdentity"].startswith(installed)
    # A crash of its watches shows a moment after the Lease is held.
    time.sleep(3)
    found = json.loads(
        pods.cluster(
            "get", "pods", "-n", pods.namespace, "--output=json", "--selector=app.kubernetes.io/instance=op"
        )
    )
    (status,) = [status for pod in found["items"] for status in pod["status"]["containerStatuses"]]
    assert (status["ready"], status["restartCount"]) == (True, 0)
