"""Operators that die, compete, or lose their connections; `e2e/charts` has one that may do little."""

import signal
import socket
import threading
import time

from documents import document, with_volume
from kube import CHILDREN, DEPLOYMENT, LEASE, until

from mmdisagg_operator.api import Topology


def test_an_operator_that_dies_in_the_middle_of_a_change_is_no_loss(start, deployed):
    first = start().wait_until_it_leads()
    deployed.wish(with_volume())
    until("the first objects", lambda: deployed.names(CHILDREN[1]))
    first.stop(signal.SIGKILL)
    start()
    deployed.is_made()
    assert {kind.name for kind in CHILDREN if not deployed.names(kind)} == set()


def test_an_operator_that_dies_while_it_follows_an_edit_is_no_loss(start, deployed):
    """Given a change of every object: new limits, and a role that goes."""
    first = start().wait_until_it_leads()
    deployed.wish(with_volume())
    deployed.is_made()
    first.is_quiet()

    def changed():
        return {
            w["metadata"]["name"]
            for w in deployed.kube.list(DEPLOYMENT, deployed.namespace)
            if "8192" in str(w)
        }

    deployed.wish(document(Topology.EP_D, {"engine": {"maxModelLen": 8192}}))
    until(
        "the first sign of the change", lambda: changed() or "demo-encode" not in deployed.names(DEPLOYMENT)
    )
    first.stop(signal.SIGKILL)
    start()
    until("the status", lambda: deployed.status()["observedGeneration"] == 2)
    assert changed() == {"demo-prefill", "demo-decode"}
    left = {name for kind in CHILDREN for name in deployed.names(kind)}
    assert not [name for name in left if "encode" in name or "embeddings" in name]


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
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
        assert "demo-decode" not in deployed.names(DEPLOYMENT)
        time.sleep(0.2)
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
