"""Connector configurations: who hands embeddings and KV blocks to whom, by topology and role.

| topology | encode            | prefill                        | decode                  |
|----------|-------------------|--------------------------------|-------------------------|
| E/P/D    | embeddings out    | embeddings in, KV out          | guard, KV in            |
| E/PD     | embeddings out    |                                | embeddings in           |
| EP/D     |                   | report only, KV out            | guard, KV in            |
| PD       |                   |                                |                         |

The embedding connectors are the worker's own; which of the two ways embeddings go is the resource's choice
(`handoff.embedding`). Decode's guard has nothing to load: it fails a request whose
media are not wholly covered by loaded KV, which stock vLLM would answer from zero embeddings. Prefill's
reporter in EP/D moves nothing either: it tells the router identity and grid of each medium.
"""

from collections.abc import Mapping
from typing import Any, Final

from mmdisagg_operator.api import Device, EmbeddingHandoff, Role, Spec, Tcp, Topology

from .endpoint import Endpoint

ENCODER_CACHE_MODULE: Final = "mmdisagg_workers.engine.encoder_cache"
TCP_MODULE: Final = "mmdisagg_workers.engine.tcp_handoff.connector"
SHARED_VOLUME_CONNECTOR: Final = "SharedVolumeConnector"
TCP_CONNECTOR: Final = "TcpConnector"
DECODE_GUARD_CONNECTOR: Final = "DecodeGuardConnector"
REPORTING_CONNECTOR: Final = "ReportingConnector"

Config = Mapping[str, Any]

_PRODUCER: Final = "ec_producer"
_CONSUMER: Final = "ec_consumer"
_EMBEDDING_ROLES: Final[Mapping[tuple[Topology, Role], str]] = {
    (Topology.E_P_D, Role.ENCODE): _PRODUCER,
    (Topology.E_P_D, Role.PREFILL): _CONSUMER,
    (Topology.E_PD, Role.ENCODE): _PRODUCER,
    (Topology.E_PD, Role.DECODE): _CONSUMER,
}
_MOVE_NOTHING: Final[Mapping[tuple[Topology, Role], tuple[str, str]]] = {
    (Topology.E_P_D, Role.DECODE): (DECODE_GUARD_CONNECTOR, _CONSUMER),
    (Topology.EP_D, Role.DECODE): (DECODE_GUARD_CONNECTOR, _CONSUMER),
    (Topology.EP_D, Role.PREFILL): (REPORTING_CONNECTOR, "ec_both"),
}
_KV_ROLES: Final[Mapping[Role, str]] = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


def embedding_config(spec: Spec, role: Role, store: str, port: Endpoint | None) -> Config | None:
    """Return vLLM's `ECTransferConfig` of an engine, or None when it has no part in the handoff.

    Args:
        spec: the deployment's.
        role: the engine's.
        store: directory that holds the embeddings; for SharedVolume.
        port: where the engine serves embeddings, if it does; for Tcp.
    """
    if (spec.topology, role) in _MOVE_NOTHING:
        return _config(*_MOVE_NOTHING[spec.topology, role])
    ec_role = _EMBEDDING_ROLES.get((spec.topology, role))
    if ec_role is None:
        return None
    if spec.embedding_handoff is EmbeddingHandoff.SHARED_VOLUME:
        extra: Config = {"shared_storage_path": store}
        return {**_config(SHARED_VOLUME_CONNECTOR, ec_role), "ec_connector_extra_config": extra}
    place = {"host": port.host, "port": port.port} if ec_role == _PRODUCER and port else {}
    extra = {"capacity": (spec.handoff.tcp or Tcp()).capacity, **place}
    return {**_config(TCP_CONNECTOR, ec_role, TCP_MODULE), "ec_connector_extra_config": extra}


def _config(connector: str, ec_role: str, module: str = ENCODER_CACHE_MODULE) -> Config:
    return {"ec_connector": connector, "ec_connector_module_path": module, "ec_role": ec_role}


def kv_config(topology: Topology, role: Role, device: Device) -> Config | None:
    """Return vLLM's `KVTransferConfig` of an engine, or None when it neither sends nor receives KV blocks.

    A block that cannot be loaded fails its request: recomputing it would use zero embeddings.

    Args:
        topology: the deployment's.
        role: the engine's.
        device: where the KV cache lies.
    """
    if not moves_kv(topology, role):
        return None
    config: dict[str, Any] = {"kv_connector": "NixlConnector", "kv_role": _KV_ROLES[role]}
    if device is Device.CPU:
        config["kv_buffer_device"] = "cpu"
    return {**config, "kv_load_failure_policy": "fail"}


def moves_kv(topology: Topology, role: Role) -> bool:
    """Whether this engine sends KV blocks to another one or receives them."""
    return topology in (Topology.E_P_D, Topology.EP_D) and role in _KV_ROLES


def shares_embeddings(spec: Spec, role: Role) -> bool:
    """Whether this engine writes to or reads from the volume of embeddings."""
    shared = spec.embedding_handoff is EmbeddingHandoff.SHARED_VOLUME
    return shared and (spec.topology, role) in _EMBEDDING_ROLES


def fetches_embeddings(spec: Spec, role: Role) -> bool:
    """Whether this engine connects to encode's embedding port."""
    over_tcp = spec.embedding_handoff is EmbeddingHandoff.TCP
    return over_tcp and _EMBEDDING_ROLES.get((spec.topology, role)) == _CONSUMER


def serves_embeddings(spec: Spec, role: Role) -> bool:
    """Whether this engine has an embedding port."""
    over_tcp = spec.embedding_handoff is EmbeddingHandoff.TCP
    return over_tcp and _EMBEDDING_ROLES.get((spec.topology, role)) == _PRODUCER


def takes_embeddings(topology: Topology, role: Role) -> bool:
    """Whether the router sends this engine embedding parts instead of pictures."""
    if topology is Topology.EP_D:
        return role is Role.DECODE
    return topology is not Topology.PD and role is not Role.ENCODE
