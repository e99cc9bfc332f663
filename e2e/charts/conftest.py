"""Fixtures of the chart tests: Helm, from the test bed's programs or from the system; a real API server."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "e2e")]

from chart import Chart, Helm  # noqa: E402

from testbed import ApiServer, api, programs  # noqa: E402
from testbed.layout import Layout  # noqa: E402
from testbed.steps import Steps  # noqa: E402

COMPILING_SECONDS = 1200


def pytest_collection_modifyitems(items):
    for item in items:
        if "e2e/charts" in item.nodeid and not any(item.iter_markers("timeout")):
            item.add_marker(pytest.mark.timeout(COMPILING_SECONDS))


def _cannot(reason: str) -> NoReturn:
    """Skip, but where everything must be tested: there it is a failure."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def _helm_program() -> str:
    layout = Layout.from_environment()
    found = programs.program(layout, "helm")
    if found.exists():
        return str(found)
    if system := shutil.which("helm"):
        return system
    if reason := programs.obstacle(layout, programs.TOOLS):
        _cannot(f"no Helm: neither installed nor built ({reason})")
    programs.build(layout, programs.TOOLS, Steps())
    return str(found)


@pytest.fixture(scope="session")
def helm(tmp_path_factory) -> Helm:
    folder = tmp_path_factory.mktemp("helm")
    own = {f"HELM_{name}_HOME": str(folder / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    # The chart asks for a release of Kubernetes; without a server Helm tells it that of its own libraries.
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(folder / "none"), **own}
    return Helm(_helm_program(), environment)


@pytest.fixture(scope="session")
def operator_chart(helm) -> Chart:
    return Chart(helm, ROOT / "charts/mmdisagg-operator")


@pytest.fixture(scope="session")
def workers_chart(helm) -> Chart:
    return Chart(helm, ROOT / "charts/mmdisagg")


@pytest.fixture(scope="session")
def api_server():
    if reason := api.capable():
        _cannot(reason)
    with ApiServer() as server:
        yield server


@pytest.fixture(scope="session")
def live_helm(helm, api_server) -> Helm:
    """Helm with a real API server."""
    return Helm(helm.program, {**helm.environment, "KUBECONFIG": str(api_server.kubeconfig)})
