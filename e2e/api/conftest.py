"""Fixtures of the API tier: a real API server with its controllers and no nodes, and operators as processes.

Without kubelets and, but for a few tests, without a scheduler, tests bring pods into the states they need.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "e2e"), str(ROOT / "operator/tests")]

from kube import Deployed, Kube, with_crd  # noqa: E402
from operators import RESYNC_SECONDS, Operator  # noqa: E402

from testbed import ApiServer  # noqa: E402
from testbed.api import capable  # noqa: E402

_numbers = itertools.count(1)


def pytest_collection_modifyitems(config, items):
    reason = capable()
    if reason and os.environ.get("CI"):
        pytest.exit(f"the API tier {reason}", returncode=1)
    for item in items:
        if "e2e/api" not in item.nodeid:
            continue
        if not any(item.iter_markers("timeout")):
            item.add_marker(pytest.mark.timeout(300))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def kube():
    """The administrator, with the CRD installed."""
    with ApiServer() as server:
        yield with_crd(Kube(server.kubeconfig, server.kubectl))


@pytest.fixture
def namespace(kube):
    """A namespace of the test's own, deleted afterwards with all that is in it."""
    name = f"t{os.getpid()}-{next(_numbers)}"
    kube.namespace(name)
    yield name
    kube.delete_namespace(name)


@pytest.fixture
def deployed(kube, namespace) -> Deployed:
    """The resource `demo` in the test's namespace; not made yet."""
    return Deployed(kube, namespace)


@pytest.fixture(scope="session")
def shared_operator(kube, tmp_path_factory):
    """The operator that most tests share; it serves the whole cluster and runs when `operator` is asked for."""
    log = tmp_path_factory.mktemp("operator") / "log"
    shared = Operator(kube.kubeconfig, log, "--resync", str(RESYNC_SECONDS))
    yield shared
    shared.end()


@pytest.fixture
def operator(shared_operator) -> Operator:
    """An operator that serves the whole cluster."""
    return shared_operator.start().wait_until_it_leads()


@pytest.fixture
def start(kube, namespace, tmp_path, shared_operator):
    """Start operators that serve the test's namespace only, with a Lease of their own there, and no other."""
    shared_operator.end()
    started: list[Operator] = []

    def starting(*arguments: str, kubeconfig: Path | None = None, identity: str = "") -> Operator:
        log = tmp_path / f"operator-{len(started)}.log"
        words = ("--namespace", namespace, "--resync", "60", *arguments)
        made = Operator(
            kubeconfig or kube.kubeconfig, log, *words, identity=identity, lease_namespace=namespace
        )
        started.append(made)
        return made.start()

    yield starting
    for one in started:
        one.end()
