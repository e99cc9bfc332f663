"""Documents for tests: the smallest resource of each topology, and a way to change one."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from mmdisagg_operator.api import MultimodalDisaggDeployment, Topology, load_deployment

ROLES = {
    Topology.E_P_D: ("encode", "prefill", "decode"),
    Topology.E_PD: ("encode", "decode"),
    Topology.EP_D: ("prefill", "decode"),
    Topology.PD: ("decode",),
}
REPOSITORY = Path(__file__).parents[2]


def document(topology: Topology = Topology.E_P_D, change: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the smallest document of a topology, with `change` merged into its spec (None removes)."""
    spec: dict[str, Any] = {
        "model": {"name": "org/model", "servedName": "model"},
        "engine": {"maxModelLen": 4096},
        **{role: {} for role in ROLES[topology]},
    }
    return {
        "apiVersion": "mmdisagg.io/v1alpha1",
        "kind": "MultimodalDisaggDeployment",
        "metadata": {"name": "demo"},
        "spec": merged(spec, change or {}),
    }


def with_volume(
    topology: Topology = Topology.E_P_D, change: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return `document` with a shared volume where it can have one: then it needs every kind of object."""
    volume = {"handoff": {"embedding": "SharedVolume"}} if "encode" in ROLES[topology] else {}
    return document(topology, merged(volume, change or {}))


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    result = deepcopy(dict(base))
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = deepcopy(value)
    return result


def deployment(
    topology: Topology = Topology.E_P_D, change: Mapping[str, Any] | None = None
) -> MultimodalDisaggDeployment:
    return load_deployment(document(topology, change))


class Example(NamedTuple):
    """One entry of `rules.yaml`: what a rule lets through and what it refuses."""

    rule: str
    accepted: dict[str, Any]
    refused: dict[str, Any]
    path: str


def rule_examples() -> Iterator[Example]:
    """Yield the examples; the same file serves tests against a real API server."""
    for entry in yaml.safe_load((Path(__file__).parent / "rules.yaml").read_text()):
        topology = Topology(entry.get("topology", "E/P/D"))
        refused_topology = Topology(entry.get("refusedTopology", topology))
        yield Example(
            entry["rule"],
            document(topology, entry["accepted"]),
            document(refused_topology, entry["refused"]),
            entry["path"],
        )
