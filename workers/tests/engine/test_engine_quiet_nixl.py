"""The adaptation of NIXL: still needed, effective, and harmless."""

import importlib
import inspect
import sys
from types import ModuleType, SimpleNamespace

import pytest

from mmdisagg_workers.engine.quiet_nixl import PROGRESS_DELAY_US, install, quiet


@pytest.fixture
def nixl_api():
    api = importlib.import_module("nixl._api")
    return sys.modules[api.nixl_agent.__module__]


@pytest.fixture
def private_api(nixl_api):
    """NIXL's compiled config class under a namespace of this test's own."""
    base = nixl_api.nixlBind.nixlAgentConfig
    if hasattr(base, "quiet_delay_us"):
        base = base.__mro__[1]
    return SimpleNamespace(nixlBind=SimpleNamespace(nixlAgentConfig=base))


@pytest.mark.case("x06")
def test_upstream_still_hard_codes_a_spinning_progress_thread(nixl_api):
    """When this fails, NIXL has changed: read its new code, and delete quiet_nixl if the delay is sane."""
    source = inspect.getsource(nixl_api.nixl_agent.__init__)
    assert "pthrDelay = 0" in source


def test_a_delay_of_zero_becomes_a_pause(private_api):
    quiet(private_api)
    config = private_api.nixlBind.nixlAgentConfig()
    config.pthrDelay = 0
    assert config.pthrDelay == PROGRESS_DELAY_US


def test_other_values_and_settings_stay(private_api):
    quiet(private_api)
    config = private_api.nixlBind.nixlAgentConfig()
    config.pthrDelay = 7
    config.lthrDelay = 0
    assert (config.pthrDelay, config.lthrDelay) == (7, 0)


def test_quieting_twice_changes_nothing(private_api):
    quiet(private_api)
    once = private_api.nixlBind.nixlAgentConfig
    quiet(private_api)
    assert private_api.nixlBind.nixlAgentConfig is once


def test_nixl_makes_agents_with_the_quiet_config(nixl_api):
    assert install()
    config = nixl_api.nixlBind.nixlAgentConfig()
    config.pthrDelay = 0
    config.useProgThread = True
    assert nixl_api.nixlBind.nixlAgent("quiet", config) is not None
    assert config.pthrDelay == PROGRESS_DELAY_US


def test_without_nixl_there_is_nothing_to_do(monkeypatch):
    without = ModuleType("vllm.distributed.nixl_utils")
    without.nixl_agent_config = None
    monkeypatch.setitem(sys.modules, "vllm.distributed.nixl_utils", without)
    assert not install()
