"""A real API server, if Kubernetes is compiled: seconds, no privilege."""

import json

import pytest

from testbed import api, programs
from testbed.api import ApiServer
from testbed.deadline import until
from testbed.errors import TestbedError
from testbed.execute import run
from testbed.layout import Layout

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "given"}}


@pytest.fixture(scope="module")
def server():
    layout = Layout.from_environment()
    if reason := api.capable(layout):
        pytest.skip(reason)
    if not programs.KUBE.folder(layout).exists():
        pytest.skip("Kubernetes is not compiled yet: python -m testbed prepare --api-only")
    with ApiServer(layout) as started:
        yield started


def test_it_is_ready_and_stores_objects(server):
    server.client.apply("/api/v1/namespaces/given", NAMESPACE)
    assert server.client.get("/api/v1/namespaces/given")["metadata"]["name"] == "given"
    assert server.client.get("/api/v1/namespaces/absent") is None


def test_controllers_run(server):
    server.client.apply("/api/v1/namespaces/given", NAMESPACE)
    account = "/api/v1/namespaces/given/serviceaccounts/default"
    until("the default service account", lambda: server.client.get(account) is not None, seconds=30)


def test_its_kubectl_knows_its_version(server):
    printed = run([server.kubectl, f"--kubeconfig={server.kubeconfig}", "version", "--output=json"])
    assert json.loads(printed)["serverVersion"]["gitVersion"].startswith("v1.")


def test_an_object_that_is_wrong_is_refused_with_the_servers_words(server):
    wrong = {**NAMESPACE, "metadata": {"name": "given", "labels": {"a": "not a label"}}}
    with pytest.raises(TestbedError, match="a valid label"):
        server.client.apply("/api/v1/namespaces/given", wrong)


def test_a_second_one_runs_beside_it_and_leaves_nothing(server):
    with ApiServer(server.layout) as second:
        assert second.client.server != server.client.server
        folder, processes = second.plane.folder, second.plane.processes
        assert second.client.get("/api/v1/namespaces/given") is None
    assert not folder.exists()
    assert processes.running() == {}
    assert server.client.ready()
