"""Names of Services: CoreDNS on the machine, and the Service through which pods ask it."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping

from testbed import programs
from testbed.control_plane import ControlPlane
from testbed.deadline import until
from testbed.network import DNS_SERVICE, MACHINE

PROCESS = "coredns"
DOMAIN = "cluster.local"
USER = "testbed:dns"
# Not 53, which a resolver of the machine's own may have.
PORT, READY_PORT = 10053, 10054


def corefile(kubeconfig: str) -> str:
    """CoreDNS's configuration: the cluster's names; any other name fails at once."""
    return f"""\
.:{PORT} {{
    bind {MACHINE}
    errors
    ready {MACHINE}:{READY_PORT}
    cache 5
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig}
    }}
}}
"""


def objects() -> dict[str, Mapping[str, object]]:
    """The objects in the cluster, by their API path."""
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    protocols = {"dns": "UDP", "dns-tcp": "TCP"}
    service: Mapping[str, object] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": DNS_SERVICE,
            "ports": [
                {"name": name, "protocol": protocol, "port": 53, "targetPort": PORT}
                for name, protocol in protocols.items()
            ],
        },
    }
    endpoints: Mapping[str, object] = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**metadata, "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [MACHINE], "conditions": {"ready": True}}],
        "ports": [{"name": name, "protocol": protocol, "port": PORT} for name, protocol in protocols.items()],
    }
    permission: Mapping[str, object] = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    }
    return {
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/testbed:dns": permission,
        "/api/v1/namespaces/kube-system/services/kube-dns": service,
        "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices/kube-dns": endpoints,
    }


def start(plane: ControlPlane) -> None:
    """Start CoreDNS, make its objects and return when it is ready.

    Raises:
        ProgramFailed: It ended.
        NotInTime: It was not ready within a minute.
    """
    client = plane.client()
    until("namespace kube-system", lambda: client.get("/api/v1/namespaces/kube-system") is not None)
    for path, manifest in objects().items():
        client.apply(path, manifest)
    config = plane.folder / "Corefile"
    config.write_text(corefile(str(plane.kubeconfig(USER))))
    plane.processes.start(PROCESS, [programs.program(plane.layout, "coredns"), "-conf", config])

    def ready() -> bool:
        plane.processes.require(PROCESS)
        return answers()

    until("CoreDNS", ready, see=str(plane.processes.log(PROCESS)))


def answers() -> bool:
    """Whether CoreDNS says that it is ready."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{MACHINE}:{READY_PORT}/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
