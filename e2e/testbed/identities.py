"""Who may talk to the API server: one user and one random token per component.

Components get the users and groups that Kubernetes' own default roles name, so
authorization is as on a real cluster and a kubelet may touch only its node.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """A user of the API server with its bearer token."""

    user: str
    token: str
    group: str = ""

    def line(self) -> str:
        """Its line in the API server's token file: token, user, user id, groups."""
        return f'{self.token},{self.user},{self.user},"{self.group}"'


GROUPS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "system:kube-proxy": "",
    "testbed:dns": "",
}


def node_user(node: int) -> str:
    """The user of a node's kubelet."""
    return f"system:node:node{node}"


def issue(
    nodes: Iterable[int], make_token: Callable[[], str] = lambda: secrets.token_hex(32)
) -> dict[str, Identity]:
    """Identities by user name, for every component and the kubelets of these nodes."""
    groups = {**GROUPS, **{node_user(node): "system:nodes" for node in nodes}}
    return {user: Identity(user, make_token(), group) for user, group in groups.items()}


def token_file(identities: Iterable[Identity]) -> str:
    """The content of the API server's token file."""
    return "".join(f"{identity.line()}\n" for identity in identities)


def kubeconfig(server: str, authority: bytes, identity: Identity) -> dict[str, object]:
    """A kubeconfig for one identity.

    Args:
        server: URL of the API server.
        authority: The certificate that signs the server's, in PEM.
        identity: Whose token it carries.
    """
    cluster = {"server": server, "certificate-authority-data": b64encode(authority).decode()}
    context = {"cluster": "testbed", "user": identity.user}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "testbed",
        "clusters": [{"name": "testbed", "cluster": cluster}],
        "users": [{"name": identity.user, "user": {"token": identity.token}}],
        "contexts": [{"name": "testbed", "context": context}],
    }
