"""Connector configurations: who hands embeddings and KV blocks to whom, by topology and role.

| topology | encode            | prefill                        | decode                  |
|----------|-------------------|--------------------------------|-------------------------|
| E/P/D    | embeddings out    | embeddings in, KV out          | guard, KV in            |
| E/PD     | embeddings out    |                                | embeddings in           |
| EP/D     |                   | report only, KV out            | guard, KV in            |
| PD       |                   |                                |                         |

The embedding connectors are the worker's own. Decode's guard has nothing to load: it fails a request whose
media are not wholly covered by loaded KV, which stock vLLM would answer from zero embeddings. Prefill's
reporter in EP/D moves nothing either: it tells the router identity and grid of each medium.
"""

from collections.abc import Mapping
from typing import Any, Final

from mmdisagg_operator.api import Device, Role, Topology

ENCODER_CACHE_MODULE: Final = "mmdisagg_workers.engine.encoder_cache"
SHARED_VOLUME_CONNECTOR: Final = "SharedVolumeConnector"
DECODE_GUARD_CONNECTOR: Final = "DecodeGuardConnector"
REPORTING_CONNECTOR: Final = "ReportingConnector"

Config = Mapping[str, Any]

_SHARED: Final = (SHARED_VOLUME_CONNECTOR, "ec_consumer")
_GUARD: Final = (DECODE_GUARD_CONNECTOR, "ec_consumer")
_EMBEDDINGS: Final[Mapping[tuple[Topology, Role], tuple[str, str]]] = {
    (Topology.E_P_D, Role.ENCODE): (SHARED_VOLUME_CONNECTOR, "ec_producer"),
    (Topology.E_P_D, Role.PREFILL): _SHARED,
    (Topology.E_P_D, Role.DECODE): _GUARD,
    (Topology.E_PD, Role.ENCODE): (SHARED_VOLUME_CONNECTOR, "ec_producer"),
    (Topology.E_PD, Role.DECODE): _SHARED,
    (Topology.EP_D, Role.PREFILL): (REPORTING_CONNECTOR, "ec_both"),
    (Topology.EP_D, Role.DECODE): _GUARD,
}
_KV_ROLES: Final[Mapping[Role, str]] = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


def embedding_config(topology: Topology, role: Role, store: str) -> Config | None:
    """Return vLLM's `ECTransferConfig` of an engine, or None when it has no part in the handoff.

    Args:
        topology: the deployment's.
        role: the engine's.
        store: directory that holds the embeddings.
    """
    if (topology, role) not in _EMBEDDINGS:
        return None
    connector, ec_role = _EMBEDDINGS[topology, role]
    config: dict[str, Any] = {
        "ec_connector": connector,
        "ec_connector_module_path": ENCODER_CACHE_MODULE,
        "ec_role": ec_role,
    }
    if connector == SHARED_VOLUME_CONNECTOR:
        config["ec_connector_extra_config"] = {"shared_storage_path": store}
    return config


def kv_config(topology: Topology, role: Role, device: Device) -> Config | None:
    """Return vLLM's `KVTransferConfig` of an engine, or None when it neither sends nor receives KV blocks.

    A block that cannot be loaded fails its request: recomputing it would use zero embeddings.

    Args:
        topology: the deployment's.
        role: the engine's.
        device: where the KV cache lies.
    """
    if topology not in (Topology.E_P_D, Topology.EP_D) or role not in _KV_ROLES:
        return None
    config: dict[str, Any] = {"kv_connector": "NixlConnector", "kv_role": _KV_ROLES[role]}
    if device is Device.CPU:
        config["kv_buffer_device"] = "cpu"
    return {**config, "kv_load_failure_policy": "fail"}


def shares_embeddings(topology: Topology, role: Role) -> bool:
    """Whether this engine writes to or reads from the volume of embeddings."""
    return _EMBEDDINGS.get((topology, role), ("",))[0] == SHARED_VOLUME_CONNECTOR


def takes_embeddings(topology: Topology, role: Role) -> bool:
    """Whether the router sends this engine embedding parts instead of pictures."""
    if topology is Topology.EP_D:
        return role is Role.DECODE
    return topology is not Topology.PD and role is not Role.ENCODE
