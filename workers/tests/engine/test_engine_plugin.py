"""The general plugin: harmless outside of a worker, and once per process inside."""

import pytest

from mmdisagg_workers.engine import media, parent_death, plugin, quiet_nixl
from mmdisagg_workers.engine.settings import ROLE


@pytest.fixture
def calls(monkeypatch):
    made = []
    plugin._set_up.cache_clear()
    monkeypatch.setattr(media, "register", lambda: made.append("media"))
    monkeypatch.setattr(quiet_nixl, "install", lambda: made.append("nixl"))
    monkeypatch.setattr(parent_death, "bind_engine_processes", lambda: made.append("parent"))
    return made


def test_another_vllm_in_the_same_environment_is_left_alone(calls, monkeypatch):
    monkeypatch.delenv(ROLE, raising=False)
    plugin.register()
    assert calls == []


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("encode", ["parent", "media"]),
        ("aggregated", ["parent", "media"]),
        ("prefill", ["parent", "media", "nixl"]),
        ("decode", ["parent", "media", "nixl"]),
    ],
)
def test_a_worker_gets_what_its_role_needs_once(calls, monkeypatch, role, expected):
    monkeypatch.setenv(ROLE, role)
    plugin.register()
    plugin.register()
    assert calls == expected
