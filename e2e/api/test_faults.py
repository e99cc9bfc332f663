"""Operators that die, compete, lose their connections, or may do little."""

import signal
import socket
import threading
import time

from documents import document
from kube import CHILDREN, DEPLOYMENT, LEASE, Deployed, until
from operators import Operator

from mmdisagg_operator.kinds import POD, RESOURCE, SECRET


def test_an_operator_that_dies_in_the_middle_of_a_change_is_no_loss(start, deployed):
    first = start().wait_until_it_leads()
    deployed.wish(document())
    until("the first objects", lambda: deployed.names(CHILDREN[1]))
    first.stop(signal.SIGKILL)
    start()
    deployed.is_made()
    assert {kind.name for kind in CHILDREN if not deployed.names(kind)} == set()


def test_two_operators_take_turns(start, deployed):
    first = start(identity="first").wait_until_it_leads()
    second = start(identity="second")
    until("the second answers", second.answers)
    deployed.wish(document())
    deployed.is_made()
    assert first.leads()
    assert not second.leads()
    assert second.writes() == 0
    assert first.stop() == 0
    second.wait_until_it_leads()
    deployed.kube.delete(DEPLOYMENT, deployed.namespace, "demo-decode")
    until("the second works", lambda: "demo-decode" in deployed.names(DEPLOYMENT))


def test_an_operator_whose_lease_is_taken_ends_and_writes_no_more(start, deployed):
    running = start(identity="first").wait_until_it_leads()
    deployed.wish(document())
    deployed.is_made()
    taken = {"spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 3600}}
    deployed.kube.patch(LEASE, deployed.namespace, "mmdisagg-operator", taken)
    assert running.process.wait(30) == 1
    deployed.kube.delete(DEPLOYMENT, deployed.namespace, "demo-decode")
    assert (
        deployed.kube.get(LEASE, deployed.namespace, "mmdisagg-operator")["spec"]["holderIdentity"]
        == "somebody"
    )


class Wire:
    """A TCP relay to the API server whose connections can be cut."""

    def __init__(self, host, port):
        self.target, self.open, self.cuts = (host, port), [], 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target)
            except OSError:
                return
            self.open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._relay, args=(one, other), daemon=True).start()

    def _relay(self, one, other):
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            end.close()

    def cut(self):
        """Reset every connection."""
        self.cuts += 1
        ends, self.open = self.open, []
        for end in ends:
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()
        self.cut()


def test_connections_that_are_reset_again_and_again_are_survived(start, deployed, tmp_path):
    host, _, port = deployed.kube.server.rpartition("//")[2].partition(":")
    wire = Wire(host, int(port))
    try:
        running = start(kubeconfig=deployed.kube.through(f"https://127.0.0.1:{wire.port}", tmp_path))
        running.wait_until_it_leads()
        deployed.wish(document())

        def made():
            time.sleep(2.0)
            wire.cut()
            return wire.cuts >= 3 and len(deployed.names(DEPLOYMENT)) == 4

        until("Deployments in spite of resets", made, seconds=150)
        wire.cut()
        deployed.kube.delete(DEPLOYMENT, deployed.namespace, "demo-decode")
        until("the repair", lambda: "demo-decode" in deployed.names(DEPLOYMENT))
        assert running.process.poll() is None
    finally:
        wire.close()


WRITE = ["get", "list", "watch", "create", "patch", "delete"]


def rules():
    """What an operator needs in a namespace that it serves."""
    by_group = {}
    for kind in CHILDREN:
        by_group.setdefault(kind.group, []).append(kind.plural)
    children = [{"apiGroups": [g], "resources": plurals, "verbs": WRITE} for g, plurals in by_group.items()]
    return [
        *children,
        {"apiGroups": [RESOURCE.group], "resources": [RESOURCE.plural], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [RESOURCE.group], "resources": [f"{RESOURCE.plural}/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": [POD.plural], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": [SECRET.plural], "verbs": ["get", "create"]},
        {"apiGroups": [LEASE.group], "resources": [LEASE.plural], "verbs": ["get", "create", "update"]},
        # What it grants to routers it must hold itself.
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        },
    ]


def test_a_namespaced_role_is_enough(start, deployed, tmp_path):
    kube, namespace = deployed.kube, deployed.namespace
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    assert kube.request(
        "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "op"}}
    ).ok
    assert kube.request("POST", f"{rbac}/roles", {"metadata": {"name": "op"}, "rules": rules()}).ok
    binding = {
        "metadata": {"name": "op"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "op"},
        "subjects": [{"kind": "ServiceAccount", "name": "op", "namespace": namespace}],
    }
    assert kube.request("POST", f"{rbac}/rolebindings", binding).ok
    account = kube.as_account(namespace, "op", tmp_path)
    assert account.request("GET", "/api/v1/namespaces").status_code == 403
    running: Operator = start(kubeconfig=account.kubeconfig).wait_until_it_leads()
    deployed.wish(document())
    deployed.is_made()
    deployed.wish(document(change={"engine": {"maxModelLen": 8192}}))
    until("the change", lambda: "8192" in str(deployed.workload("decode")["spec"]))
    kube.delete(DEPLOYMENT, namespace, "demo-decode")
    until("the repair", lambda: "demo-decode" in deployed.names(DEPLOYMENT))
    assert running.process.poll() is None
    assert "Forbidden" not in running.log.read_text()
    assert isinstance(deployed, Deployed)
