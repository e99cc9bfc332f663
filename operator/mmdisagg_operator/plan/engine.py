"""Arguments and environment of the engines, all for vLLM 0.32.0.

Prefix caching stays on everywhere: media identities keep it right.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mmdisagg_operator.api import Device, MultimodalDisaggDeployment, Role, Spec, Topology

from . import environment
from .endpoint import Endpoint
from .handoff import embedding_config, kv_config, takes_embeddings
from .launch import WORKER, Launch
from .revision import revision
from .site import EnginePlace, Site
from .wire import compact, media

AGGREGATED: Final = "aggregated"
GUARD: Final = "mmdisagg_workers.engine.guard.StageGuard"
PLUGIN: Final = "mmdisagg"
TAKE_PROCESSOR_ARGUMENTS: Final = "--trust-request-mm-kwargs"
"""Whoever sees the pixels applies the client's `mm_processor_kwargs`; vLLM refuses them otherwise."""
QUIET_PATHS: Final = ("/health", "/metrics", "/mmdisagg/v1/info")

CPU_DEFAULTS: Final[Mapping[str, str]] = {
    environment.CPU_KV_CACHE_GIB: "1",
    environment.CPU_THREAD_BINDING: "nobind",
    environment.WORKER_START_METHOD: "fork",
    environment.CPU_THREADS: "1",
}
"""Environment of engines on CPUs that users may override."""


def engine(deployment: MultimodalDisaggDeployment, site: Site, role: Role, place: EnginePlace) -> Launch:
    """Plan one engine of a deployment.

    Args:
        deployment: the wish.
        site: where it runs.
        role: an engine role that the deployment has.
        place: the engine's own addresses.
    """
    spec = deployment.spec
    topology = spec.topology
    references = site.references(spec, role)
    kv = kv_config(topology, role, spec.engine.device)
    args = (
        *_common_args(spec, role, site.model, place.http),
        *_stage_args(spec, role, site, place, kv),
        *_extra_args(spec, role),
    )
    env = {
        **_chosen_env(spec, role),
        **_common_env(spec, topology),
        **(_side_channel(place.side_channel) if kv else {}),
        **site.secrets,
    }
    return Launch(WORKER, args, env, references)


def aggregated(deployment: MultimodalDisaggDeployment, site: Site, http: Endpoint) -> Launch:
    """Plan the yardstick: one engine that encodes, prefills and decodes, in nobody's path.

    It has the decode role's own arguments, since decode's numbers are compared with its own, and is not
    guarded by the stage token.

    Args:
        deployment: the wish that the yardstick is for.
        site: where it runs.
        http: where the yardstick's OpenAI server listens.
    """
    spec = deployment.spec
    args = (
        *_common_args(spec, AGGREGATED, site.model, http),
        TAKE_PROCESSOR_ARGUMENTS,
        *_extra_args(spec, Role.DECODE),
    )
    env = {**_chosen_env(spec, Role.DECODE), **_common_env(spec, Topology.PD)}
    return Launch(WORKER, args, env)


def _common_args(spec: Spec, role: str, model: str, http: Endpoint) -> tuple[str, ...]:
    limits = spec.media.limits
    return (
        *("--role", str(role)),
        *("--model", model),
        *("--served-model-name", spec.model.served_name),
        *("--host", http.host),
        *("--port", str(http.port)),
        *("--max-model-len", str(spec.engine.max_model_len)),
        *("--limit-mm-per-prompt", compact({"image": limits.images, "video": limits.videos})),
        *("--middleware", GUARD),
        "--enable-prompt-tokens-details",
        *("--disable-access-log-for-endpoints", ",".join(QUIET_PATHS)),
    )


def _stage_args(
    spec: Spec, role: Role, site: Site, place: EnginePlace, kv: Mapping[str, Any] | None
) -> Iterator[str]:
    topology = spec.topology
    if role is Role.ENCODE:
        yield "--mm-encoder-only"
    if takes_embeddings(topology, role):
        yield "--enable-mm-embeds"
    else:
        yield TAKE_PROCESSOR_ARGUMENTS
    embeddings = embedding_config(spec, role, site.embedding_store, place.embeddings)
    if embeddings is not None:
        yield from ("--ec-transfer-config", compact(embeddings))
    if kv is not None:
        yield from ("--kv-transfer-config", compact(kv))
    if site.drain_seconds:
        yield from ("--shutdown-timeout", str(site.drain_seconds))


def _extra_args(spec: Spec, role: Role) -> tuple[str, ...]:
    fields = spec.engine_role(role)
    return (*spec.engine.extra_args, *(fields.extra_args if fields else ()))


def _chosen_env(spec: Spec, role: Role) -> dict[str, str]:
    fields = spec.engine_role(role)
    defaults = CPU_DEFAULTS if spec.engine.device is Device.CPU else {}
    chosen = (*spec.engine.env, *(fields.env if fields else ()))
    return {**defaults, **{variable.name: variable.value for variable in chosen}}


def _common_env(spec: Spec, topology: Topology) -> dict[str, str]:
    return {
        environment.TOPOLOGY: str(topology),
        environment.FAMILY: str(spec.model.family),
        environment.REVISION: revision(spec),
        environment.MEDIA: media(spec),
        environment.PLUGINS: PLUGIN,
        environment.MEDIA_CONNECTOR: PLUGIN,
        environment.MAX_IMAGE_PIXELS: str(spec.media.limits.pixels),
        environment.NO_USAGE_STATS: "1",
    }


def _side_channel(endpoint: Endpoint) -> dict[str, str]:
    return {
        environment.SIDE_CHANNEL_HOST: endpoint.host,
        environment.SIDE_CHANNEL_PORT: str(endpoint.port),
    }
