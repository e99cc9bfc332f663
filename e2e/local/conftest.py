"""Fixtures of the local tier: real engines on CPU, one deployment at a time."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "models")]

from picture_server import PictureServer, served_pictures  # noqa: E402
from stack import ALLOWED_HOST, CPU_ENGINE, Stack, Stacks  # noqa: E402
from stack import stacks as running_stacks  # noqa: E402

STACKS = pytest.StashKey[Stacks]()
CALLS_TOOLS = [
    "--enable-auto-tool-choice",
    "--tool-call-parser=phi4_mini_json",
    '--structured-outputs-config={"backend":"xgrammar","disable_any_whitespace":true}',
]
"""Forced calls as JSON without spaces: in looser grammars a model that knows no JSON writes spaces for ever."""


def pytest_collection_modifyitems(config, items):
    if importlib.util.find_spec("vllm") is None or sys.platform != "linux":
        if os.environ.get("CI"):
            pytest.exit("the local tier needs Linux and the CPU engine; run `make setup`", returncode=1)
        for item in items:
            if "e2e/local" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason="needs Linux and the CPU engine"))
    for item in items:
        if "e2e/local" in item.nodeid and not any(item.iter_markers("timeout")):
            item.add_marker(pytest.mark.timeout(900))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """End the engines with this folder's last test: the cluster tier wants their slots."""
    if (
        nextitem is not None
        and Path(__file__).parent not in nextitem.path.parents
        and STACKS in item.config.stash
    ):
        item.config.stash[STACKS].stop()


@pytest.fixture(scope="session")
def stacks(request) -> Stacks:
    for running in running_stacks():
        request.config.stash[STACKS] = running
        yield running


@pytest.fixture(scope="session")
def shapes() -> Path:
    """The trained tiny model."""
    return ROOT / "models/shapes"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Builds random-weight models of other families."""
    from tiny import build

    folder = tmp_path_factory.mktemp("models")

    def built(name: str) -> Path:
        build(name, folder / name)
        return folder / name

    return built


@pytest.fixture(scope="session")
def qwen(stacks, shapes):
    """Returns the running E/P/D deployment of the trained model (restarted if another one took its place)."""

    def get() -> Stack:
        media = {"allowedHosts": [ALLOWED_HOST], "allowPrivateNetworks": True}
        engine = {**CPU_ENGINE, "extraArgs": [*CPU_ENGINE["extraArgs"], *CALLS_TOOLS]}
        return stacks.get(shapes, "E/P/D", media=media, engine=engine)

    return get


@pytest.fixture(scope="session")
def web() -> PictureServer:
    """A web server with pictures on the allowed host."""
    yield from served_pictures(ALLOWED_HOST)
