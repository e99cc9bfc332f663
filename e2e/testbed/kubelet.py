"""What the kubelet and the kube-proxy of a node are told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from testbed import cgroups, runtime
from testbed.dns import DOMAIN
from testbed.network import DNS_SERVICE, POD_RANGE


def kubelet_config(node: int, authority: Path) -> Mapping[str, object]:
    """The kubelet's configuration.

    Args:
        node: The node's number.
        authority: The certificate that signs the API server's client certificate.
    """
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{runtime.SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroups.group(node)}",
        "failSwapOn": False,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": DOMAIN,
        # Empty: no pod inherits the machine's resolver, which it could not reach.
        "resolvConf": "",
        # Images cannot be pulled again, and a full disk is the machine's affair.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def proxy_config(node_name: str, kubeconfig: Path) -> Mapping[str, object]:
    """The kube-proxy's configuration."""
    # The kernel lets only the machine's own network namespace set these; zero leaves them alone.
    connection_tracking = {
        "maxPerCore": 0,
        "min": 0,
        "tcpEstablishedTimeout": "0s",
        "tcpCloseWaitTimeout": "0s",
    }
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": str(POD_RANGE),
        "hostnameOverride": node_name,
        "conntrack": connection_tracking,
    }


def is_ready(node: Mapping[str, object]) -> bool:
    """Whether a node object's condition ``Ready`` is true."""
    status = node.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions or ())
