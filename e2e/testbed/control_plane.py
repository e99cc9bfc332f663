"""etcd, API server, controller manager and, on request, scheduler: their flags and their start.

They are ordinary processes that need no privilege; nodes are not their concern.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from testbed import programs
from testbed.certificates import Certificates
from testbed.client import ApiClient
from testbed.deadline import until
from testbed.identities import Identity, issue, kubeconfig, node_user, token_file
from testbed.layout import Layout, private_folder
from testbed.processes import Processes

LOOPBACK = "127.0.0.1"
MAX_NODES = 9
ETCD, API_SERVER, CONTROLLERS, SCHEDULER = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
)
# Below Linux's range for outgoing connections, which could take a port between choice and use.
FREE_PORTS = range(20000, 32000)


@dataclass(frozen=True)
class Endpoint:
    """Where the control plane is reached.

    Attributes:
        address: The API server's own IP address; also what pods are told.
        port: The API server's port.
        etcd_port: The store's port on the loopback address.
        peer_port: The store's port for the members that it does not have.
        services: The range of Service addresses, in CIDR notation.
        first_service: The address of the Service ``kubernetes``: the first of that range.
    """

    address: str
    port: int
    etcd_port: int
    peer_port: int
    services: str
    first_service: str

    @property
    def url(self) -> str:
        """The API server's URL."""
        return f"https://{self.address}:{self.port}"

    @property
    def etcd_url(self) -> str:
        """The store's URL."""
        return f"https://{LOOPBACK}:{self.etcd_port}"

    @property
    def peer_url(self) -> str:
        """The store's URL for other members."""
        return f"https://{LOOPBACK}:{self.peer_port}"


def free_ports(count: int) -> list[int]:
    """Ports that nothing on the loopback address listens on at this moment."""
    found: list[int] = []
    for port in random.sample(FREE_PORTS, k=len(FREE_PORTS)):
        if len(found) == count:
            break
        with suppress(OSError), socket.socket() as probe:
            probe.bind((LOOPBACK, port))
            found.append(port)
    return found


@dataclass(frozen=True)
class ControlPlane:
    """The control plane of one instance, whose files lie in ``folder``."""

    layout: Layout
    processes: Processes

    @property
    def folder(self) -> Path:
        """The instance's live folder."""
        return self.processes.instance

    @property
    def certificates(self) -> Certificates:
        """The instance's certificates."""
        return Certificates(self.folder / "certificates")

    def kubeconfig(self, user: str = "admin") -> Path:
        """The kubeconfig of a user; the admin's has the plain name."""
        name = "kubeconfig" if user == "admin" else f"kubeconfig-{user.replace(':', '-')}"
        return self.folder / name

    def client(self) -> ApiClient:
        """A client with the admin's token, read from the admin's kubeconfig."""
        content = json.loads(self.kubeconfig().read_text())
        return ApiClient(
            server=content["clusters"][0]["cluster"]["server"],
            authority=self.certificates.certificate("ca"),
            token=content["users"][0]["user"]["token"],
        )

    def healthy(self, *components: str) -> bool:
        """Whether these components run and the API server is ready."""
        whole = self.kubeconfig().exists() and self.processes.running().keys() >= set(components)
        return whole and self.client().ready()

    def start(self, endpoint: Endpoint, *, scheduler: bool) -> None:
        """Start everything and return when the API server is ready.

        Raises:
            ProgramFailed: A component ended; the message has the end of its log.
            NotInTime: The API server was not ready within a minute.
        """
        self._write_credentials(endpoint)
        self._start(ETCD, etcd_flags(endpoint, self.certificates, self.folder / "etcd"))
        self._await_store(endpoint.etcd_port)
        self._start(API_SERVER, api_server_flags(endpoint, self.certificates, self.folder / "tokens.csv"))
        self._await_ready()
        certificates = self.certificates
        controllers = self.kubeconfig("system:kube-controller-manager")
        self._start(CONTROLLERS, controller_manager_flags(controllers, certificates))
        if scheduler:
            self._start(SCHEDULER, scheduler_flags(self.kubeconfig("system:kube-scheduler")))

    def _start(self, component: str, flags: Sequence[str]) -> None:
        self.processes.start(component, [programs.program(self.layout, component), *flags])

    def _await_store(self, port: int) -> None:
        # The API server would try again only after a second, then two, and so on.
        def listens() -> bool:
            self.processes.require(ETCD)
            with socket.socket() as probe:
                return probe.connect_ex((LOOPBACK, port)) == 0

        until("the store", listens, see=str(self.processes.log(ETCD)))

    def _await_ready(self) -> None:
        def ready() -> bool:
            self.processes.require(ETCD, API_SERVER)
            return self.client().ready()

        until("the API server", ready, see=str(self.processes.log(API_SERVER)))

    def _write_credentials(self, endpoint: Endpoint) -> None:
        private_folder(self.folder)
        private_folder(self.certificates.folder)
        self.certificates.issue([endpoint.address, LOOPBACK, endpoint.first_service])
        identities = issue(range(1, MAX_NODES + 1))
        (self.folder / "tokens.csv").write_text(token_file(identities.values()))
        self._write_kubeconfigs(endpoint, identities)

    def _write_kubeconfigs(self, endpoint: Endpoint, identities: Mapping[str, Identity]) -> None:
        authority = self.certificates.certificate("ca").read_bytes()
        for user, identity in identities.items():
            path = self.kubeconfig(user)
            path.touch(mode=0o600)
            path.write_text(json.dumps(kubeconfig(endpoint.url, authority, identity), indent=1))

    def node_kubeconfig(self, node: int) -> Path:
        """The kubeconfig of a node's kubelet."""
        return self.kubeconfig(node_user(node))


def etcd_flags(endpoint: Endpoint, certificates: Certificates, data: Path) -> list[str]:
    """Flags of the store: one member that does not wait for the disk, closed to all but the API server."""
    ca, certificate, key = _files(certificates, "server")
    return [
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        "--enable-grpc-gateway=false",
        f"--listen-client-urls={endpoint.etcd_url}",
        f"--advertise-client-urls={endpoint.etcd_url}",
        f"--listen-peer-urls={endpoint.peer_url}",
        f"--initial-advertise-peer-urls={endpoint.peer_url}",
        f"--initial-cluster=default={endpoint.peer_url}",
        *("--client-cert-auth", f"--trusted-ca-file={ca}", f"--cert-file={certificate}", f"--key-file={key}"),
        *("--peer-client-cert-auth", f"--peer-trusted-ca-file={ca}"),
        *(f"--peer-cert-file={certificate}", f"--peer-key-file={key}"),
    ]


def api_server_flags(endpoint: Endpoint, certificates: Certificates, tokens: Path) -> list[str]:
    """Flags of the API server."""
    ca, certificate, key = _files(certificates, "server")
    _, client_certificate, client_key = _files(certificates, "client")
    token_key = certificates.key("tokens")
    return [
        f"--etcd-servers={endpoint.etcd_url}",
        *(f"--etcd-cafile={ca}", f"--etcd-certfile={client_certificate}", f"--etcd-keyfile={client_key}"),
        *(f"--bind-address={endpoint.address}", f"--secure-port={endpoint.port}"),
        *advertisement(endpoint.address),
        *(f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"),
        f"--service-cluster-ip-range={endpoint.services}",
        "--service-account-issuer=https://kubernetes.default.svc",
        *(f"--service-account-key-file={token_key}", f"--service-account-signing-key-file={token_key}"),
        *(f"--token-auth-file={tokens}", "--authorization-mode=Node,RBAC", "--allow-privileged=true"),
        "--enable-admission-plugins=NodeRestriction",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={client_certificate}",
        f"--kubelet-client-key={client_key}",
    ]


def advertisement(address: str) -> list[str]:
    """Flags for the Service ``kubernetes``, through which pods reach the API server.

    A loopback address cannot be an endpoint: the API server would try and fail for ever.
    """
    if address == LOOPBACK:
        return ["--endpoint-reconciler-type=none"]
    return [f"--advertise-address={address}"]


def controller_manager_flags(kubeconfig_file: Path, certificates: Certificates) -> list[str]:
    """Flags of the controller manager; its client is not throttled to the pace of a big cluster's."""
    return [
        f"--kubeconfig={kubeconfig_file}",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={certificates.key('tokens')}",
        f"--root-ca-file={certificates.certificate('ca')}",
        *("--leader-elect=false", "--secure-port=0"),
        *("--kube-api-qps=200", "--kube-api-burst=400"),
    ]


def scheduler_flags(kubeconfig_file: Path) -> list[str]:
    """Flags of the scheduler."""
    return [f"--kubeconfig={kubeconfig_file}", "--leader-elect=false", "--secure-port=0"]


def _files(certificates: Certificates, name: str) -> tuple[Path, Path, Path]:
    return certificates.certificate("ca"), certificates.certificate(name), certificates.key(name)
