"""Fixtures of the image tests: a cluster whose nodes have the images.

`python images/build.py --testbed` builds them for the test bed. `MMDISAGG_E2E_KUBECONFIG` names any other
cluster, `MMDISAGG_E2E_REGISTRY` and `MMDISAGG_E2E_TAG` its images, `MMDISAGG_E2E_ENGINE` the folder of an engine
on its nodes.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "e2e"), str(ROOT / "images")]

import build  # noqa: E402
from restricted_pods import Pods  # noqa: E402

from testbed import programs  # noqa: E402
from testbed.cluster import Cluster  # noqa: E402
from testbed.layout import Layout  # noqa: E402
from testbed.steps import silent  # noqa: E402


def pytest_collection_modifyitems(items):
    for item in items:
        if "e2e/images" in item.nodeid and not any(item.iter_markers("timeout")):
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def image():
    """The name of one of the project's images."""
    registry = os.environ.get("MMDISAGG_E2E_REGISTRY", build.LOCAL)
    tag = os.environ.get("MMDISAGG_E2E_TAG", build.version())
    return lambda name: build.image_name(name, registry, tag)


@pytest.fixture(scope="session")
def client():
    """Gives the words before a client's commands: its program and the cluster."""
    given = os.environ.get("MMDISAGG_E2E_KUBECONFIG")
    if given:
        return lambda program: (shutil.which(program) or program, f"--kubeconfig={given}")
    layout = Layout.from_environment()
    cluster = Cluster(layout, silent())
    if not cluster.whole():
        pytest.skip("no cluster: bring up the test bed and build the images, or set MMDISAGG_E2E_KUBECONFIG")
    own = f"--kubeconfig={cluster.plane.kubeconfig()}"
    return lambda program: (str(programs.program(layout, program)), own)


@pytest.fixture(scope="session")
def helm(client) -> tuple[str, ...]:
    return client("helm")


@pytest.fixture(scope="session")
def engine() -> Path:
    """The folder with vLLM on the nodes, for worker images without one."""
    given = os.environ.get("MMDISAGG_E2E_ENGINE")
    if os.environ.get("MMDISAGG_E2E_KUBECONFIG") and not given:
        pytest.skip("MMDISAGG_E2E_ENGINE is not set: the image holds its engine")
    # The test bed's nodes share this machine's files.
    return Path(given) if given else ROOT / ".venv"


@pytest.fixture(scope="session")
def pods(client):
    with Pods(client("kubectl"), f"images-{os.getpid()}") as pods:
        yield pods
