"""The info endpoint: not ready before the engine is, and then the contract's ModelInfo."""

from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from test_engine_guard import GEOMETRY
from test_engine_settings import MINIMAL

from mmdisagg_workers.contract import INFO_PATH, ModelInfo
from mmdisagg_workers.engine import settings as names
from mmdisagg_workers.engine.info import InfoEndpoint, model_info
from mmdisagg_workers.engine.start_errors import BadSettings

ENVIRON = MINIMAL | {names.GEOMETRY: GEOMETRY, names.FAMILY: "Qwen2.5-VL", names.REVISION: "r1"}


class Engine:
    """As much of vLLM's engine client as the plugin uses."""

    model_config = SimpleNamespace(dtype="torch.bfloat16", max_model_len=4096)

    def __init__(self):
        self.called = []

    async def collective_rpc(self, method):
        self.called.append(method)
        return [{"visual": 8}]


def test_the_info_says_what_the_router_needs():
    info = model_info(ENVIRON, "torch.float32", 1024)
    assert (info.family, info.role, info.topology, info.revision) == ("Qwen2.5-VL", "prefill", "E/P/D", "r1")
    assert (info.embedding_dtype, info.vllm_version) == ("float32", "0.32.0")
    assert (info.limits.max_model_len, info.limits.images) == (1024, 8)
    assert info.geometry.placeholders["image"].token_id == 12


def test_outside_of_the_launcher_there_is_no_info():
    with pytest.raises(BadSettings, match="mmdisagg-worker"):
        model_info(MINIMAL, "float32", 1024)


async def test_the_endpoint_answers_once_the_engine_is_up(monkeypatch):
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    app = FastAPI()
    plugin = InfoEndpoint()
    plugin.attach_router(app)
    client = TestClient(app)
    assert client.get(INFO_PATH).status_code == 503
    engine = Engine()
    await plugin.init_state(engine, app.state, None)
    assert engine.called == ["restore_cores"]
    answer = client.get(INFO_PATH)
    assert answer.headers["content-type"] == "application/json"
    info = ModelInfo.from_json(answer.content)
    assert (info.embedding_dtype, info.limits.max_model_len) == ("bfloat16", 4096)


async def test_a_server_without_engine_stays_unready():
    app = FastAPI()
    plugin = InfoEndpoint()
    plugin.attach_router(app)
    await plugin.init_state(None, app.state, None)
    assert TestClient(app).get(INFO_PATH).status_code == 503


def test_it_is_an_endpoint_plugin():
    from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

    assert isinstance(InfoEndpoint(), EndpointPlugin)
