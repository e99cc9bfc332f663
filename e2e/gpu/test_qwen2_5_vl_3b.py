"""Real Qwen2.5-VL-3B on GPUs: encode, prefill and decode in pods answer like one aggregated engine.

Runs only with `MMDISAGG_E2E_GPU=1`, on the cluster of `KUBECONFIG`, whose nodes have the project's images and
three free GPUs: the aggregated engine gets its turn when the deployment is gone. Not run so far: no machine
of this project's tests has GPUs in a cluster.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from contextlib import contextmanager

import build
import pytest
import requests
import yaml
from closeness import IDENTICAL_SHARE, difference, identical, steps

from mmdisagg_cli.workload import picture_requests
from mmdisagg_operator.api import load_deployment
from mmdisagg_operator.plan import aggregated
from mmdisagg_operator.plan.site import HTTP_PORT, ClusterSite, Endpoint

if os.environ.get("MMDISAGG_E2E_GPU") != "1":
    pytest.skip("needs a cluster with GPUs: set MMDISAGG_E2E_GPU=1", allow_module_level=True)

pytestmark = pytest.mark.timeout(5400)
NAMESPACE, NAME, GPU = "gpu", "qwen", "nvidia.com/gpu"
REGISTRY = os.environ.get("MMDISAGG_E2E_REGISTRY", build.LOCAL)
TAG = os.environ.get("MMDISAGG_E2E_TAG", build.version())
LOADING_SECONDS = 3000
REQUESTS, MAX_TOKENS = 24, 64


def run(*words, stdin=None):
    done = subprocess.run(list(map(str, words)), input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kubectl(*words, stdin=None):
    return run("kubectl", f"--namespace={NAMESPACE}", *words, stdin=stdin)


@contextmanager
def forwarded(target):
    """Yield the local URL of a pod's or Service's port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["kubectl", f"--namespace={NAMESPACE}", "port-forward", target, f"{port}:{HTTP_PORT}"]
    with subprocess.Popen(command) as forward:
        try:
            deadline = time.monotonic() + 30
            while not answers(f"http://127.0.0.1:{port}/health"):
                assert time.monotonic() < deadline, f"{target} is not forwarded"
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}"
        finally:
            forward.terminate()


def answers(url):
    try:
        return requests.get(url, timeout=5).ok
    except requests.ConnectionError:
        return False


def ask(url, content):
    body = {
        "model": "qwen2.5-vl-3b",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "logprobs": True,
        "top_logprobs": 10,
    }
    answer = requests.post(f"{url}/v1/chat/completions", json=body, timeout=600)
    assert answer.ok, answer.text
    return steps(answer.json()["choices"][0])


@pytest.fixture(scope="module")
def workload():
    return [list(request.content) for request in picture_requests(7, REQUESTS, 2, 32768)]


@pytest.fixture(scope="module")
def resource():
    """The deployment that the workers' chart makes of the preset."""
    values = {
        "preset": "qwen2.5-vl-3b",
        "handoff": {"sharedVolume": {"persistentVolumeClaim": {"claimName": "embeddings"}}},
    }
    rendered = run(
        "helm", "template", NAME, build.ROOT / "charts/mmdisagg", "--values=-", stdin=json.dumps(values)
    )
    return yaml.safe_load(rendered)


@pytest.fixture(scope="module")
def disaggregated(resource, workload):
    run("kubectl", "create", "namespace", NAMESPACE)
    kubectl("apply", f"--filename={build.ROOT / 'e2e/kind/volume.yaml'}")
    settings = f"registry={REGISTRY},image.tag={TAG},workerImage.tag={TAG},routerImage.tag={TAG}"
    chart = build.ROOT / "charts/mmdisagg-operator"
    run("helm", "install", "op", chart, f"--namespace={NAMESPACE}", f"--set={settings}", "--wait")
    kubectl("apply", "--filename=-", stdin=json.dumps(resource))
    kubectl("wait", f"mmdd/{NAME}", "--for=condition=Available", f"--timeout={LOADING_SECONDS}s")
    with forwarded(f"service/{NAME}-router") as url:
        yield [ask(url, content) for content in workload]


@pytest.fixture(scope="module")
def reference(disaggregated, resource, workload):
    """The aggregated engine's answers, on a GPU that the deployment has given back."""
    kubectl("delete", "mmdd", NAME, "--wait")
    kubectl("wait", "pod", f"--selector=mmdisagg.io/deployment={NAME}", "--for=delete", "--timeout=900s")
    kubectl("apply", "--filename=-", stdin=json.dumps(aggregated_pod(resource)))
    kubectl("wait", "pod/aggregated", "--for=condition=Ready", f"--timeout={LOADING_SECONDS}s")
    with forwarded("pod/aggregated") as url:
        return [ask(url, content) for content in workload]


def aggregated_pod(resource):
    wish = load_deployment(resource)
    launch = aggregated(wish, ClusterSite.of(wish), Endpoint("0.0.0.0", HTTP_PORT))
    container = {
        "name": "engine",
        "image": build.image_name("worker", REGISTRY, TAG),
        "command": [launch.program],
        "args": list(launch.args),
        "env": [{"name": name, "value": value} for name, value in {"HOME": "/cache", **launch.env}.items()],
        "resources": {"limits": {GPU: 1}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": HTTP_PORT}},
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes = [{"name": "cache", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    spec = {"containers": [container], "volumes": volumes, "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "aggregated"}, "spec": spec}


def test_every_answer_is_the_aggregated_engines_within_rounding(disaggregated, reference):
    wrong = [difference(*pair) for pair in zip(disaggregated, reference, strict=True)]
    assert [one for one in wrong if one] == []


def test_most_answers_are_token_identical(disaggregated, reference):
    same = [identical(*pair) for pair in zip(disaggregated, reference, strict=True)]
    assert sum(same) >= IDENTICAL_SHARE * len(same)


def test_answers_of_different_pictures_differ(reference):
    """Negative control: a model that ignores pictures would pass the others."""
    assert len({"".join(step.token for step in answer) for answer in reference}) > len(reference) / 2


def test_another_pictures_answer_is_noticed(disaggregated, reference):
    """Negative control of the comparison itself."""
    shifted = [*reference[1:], reference[0]]
    assert any(difference(*pair) for pair in zip(disaggregated, shifted, strict=True))
