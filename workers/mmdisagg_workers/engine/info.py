"""What a worker tells about itself, for the router and for whoever looks.

    GET /mmdisagg/v1/info       the `ModelInfo` that the router builds requests from
    GET /mmdisagg/v1/weights    bytes of the loaded parameters per module and rank; needs the stage token

A vLLM endpoint plugin (`vllm.plugins.endpoint_plugins.interface`, vLLM 0.32.0): `attach_router` runs while
the app is built, `init_state` once the engine is up and knows its dtype and length limit.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Response

from mmdisagg_workers.contract import CONTRACT_VERSION, INFO_PATH, Limits, ModelInfo

from .main import installed_vllm
from .settings import WorkerSettings
from .start_errors import BadSettings

WEIGHTS_PATH = "/mmdisagg/v1/weights"


class InfoEndpoint:
    """Endpoint plugin that serves this worker's `ModelInfo` and the sizes of its weights."""

    name = "mmdisagg"
    required_tasks: tuple[str, ...] | None = None

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes; they answer 503 until `init_state` has run."""
        app.add_api_route(INFO_PATH, _answer_of(app), methods=["GET"], response_class=Response)
        app.add_api_route(WEIGHTS_PATH, _weights_of(app), methods=["GET"], response_class=Response)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Compute the answer from the settings and the running engine's model config.

        This is also where an engine is complete and not yet serving: its workers get their cores back.
        """
        if engine_client is not None:
            config = engine_client.model_config
            state.mmdisagg_info = model_info(os.environ, str(config.dtype), config.max_model_len)
            state.mmdisagg_engine = engine_client
            await engine_client.collective_rpc("restore_cores")


def model_info(environ: Mapping[str, str], dtype: str, max_model_len: int) -> ModelInfo:
    """Put together what this worker tells about itself.

    Args:
        environ: environment as `mmdisagg-worker` prepared it.
        dtype: the engine's resolved dtype, as `torch.float32` or `float32`.
        max_model_len: the engine's resolved limit, tokens.

    Raises:
        BadSettings: the environment was not prepared by `mmdisagg-worker`.
    """
    settings = WorkerSettings.from_environ(environ)
    if settings.geometry is None:
        raise BadSettings("the engine was not started by mmdisagg-worker")
    media = settings.media
    return ModelInfo(
        family=settings.family,
        role=settings.role,
        topology=settings.topology,
        revision=settings.revision,
        vllm_version=installed_vllm(),
        contract_version=CONTRACT_VERSION,
        embedding_dtype=dtype.removeprefix("torch."),
        geometry=settings.geometry,
        limits=Limits(max_model_len, media.images, media.videos, media.bytes, media.pixels),
    )


def _answer_of(app: FastAPI) -> Any:
    async def answer() -> Response:
        info: ModelInfo | None = getattr(app.state, "mmdisagg_info", None)
        body, status = ("{}", 503) if info is None else (info.to_json(), 200)
        return Response(body, status, media_type="application/json")

    return answer


def _weights_of(app: FastAPI) -> Any:
    async def answer() -> Response:
        engine = getattr(app.state, "mmdisagg_engine", None)
        if engine is None:
            return Response("{}", 503, media_type="application/json")
        ranks = await engine.collective_rpc("loaded_weight_bytes")
        return Response(json.dumps({"ranks": ranks}), media_type="application/json")

    return answer
