"""What the command line tells about a test bed: shell settings and what runs."""

from __future__ import annotations

import shlex
from pathlib import Path

from testbed import base_image, programs
from testbed.cluster import Cluster
from testbed.layout import Layout
from testbed.processes import marked


def settings(layout: Layout, kubeconfig: Path) -> str:
    """Shell commands that set KUBECONFIG, PATH (kubectl, helm) and the base image's name."""
    folders = [programs.KUBE.folder(layout), programs.TOOLS.folder(layout)]
    return "\n".join(
        (
            f"export KUBECONFIG={shlex.quote(str(kubeconfig))}",
            f"export PATH={':'.join(shlex.quote(str(folder)) for folder in folders)}:$PATH",
            f"export MMDISAGG_TESTBED_BASE_IMAGE={base_image.name()}",
        )
    )


def status(cluster: Cluster) -> str:
    """One line per running program, by instance, and one per node with its images."""
    layout = cluster.layout
    found = sorted(
        (instance.name, name, pid) for pid, instance, name in marked() if instance.parent == layout.instances
    )
    lines = [f"{instance:12} {name:28} pid {pid}" for instance, name, pid in found]
    for node in cluster.nodes():
        if runtime := node.runtime():
            named = [image for image in runtime.images() if not image.startswith("sha256:")]
            lines.append(f"{node.name} has {', '.join(named)}")
    lines.append(
        "the cluster is up" if cluster.whole() else f"the cluster is not up; logs: {layout.root / 'log'}"
    )
    return "\n".join(lines)
