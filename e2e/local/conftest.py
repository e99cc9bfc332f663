"""Fixtures of the local tier: real engines on CPU, one deployment at a time."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "models")]

from stack import ALLOWED_HOST, Stack, Stacks  # noqa: E402
from stack import stacks as running_stacks  # noqa: E402


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


@pytest.fixture(scope="session")
def stacks() -> Stacks:
    yield from running_stacks()


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
        return stacks.get(shapes, "E/P/D", media=media)

    return get
