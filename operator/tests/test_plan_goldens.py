"""The whole plan of every topology, as readable files under `goldens/`.

`MMDISAGG_UPDATE_GOLDENS=1 pytest operator/tests/test_plan_goldens.py` writes them anew; read the diff.
"""

import os
from itertools import count
from pathlib import Path

import pytest
import yaml
from documents import deployment

from mmdisagg_operator.api import DecodeContract, Topology
from mmdisagg_operator.plan import ClusterSite, LocalSite, render

GOLDENS = Path(__file__).parent / "goldens"
LAPTOP = {
    "model": {"source": "Path", "name": None, "path": "models/tiny"},
    "engine": {"device": "Cpu", "extraArgs": ["--dtype=float32"]},
}
CLUSTER = {
    "model": {"tokenSecretRef": {"name": "hub", "key": "token"}},
    "media": {"allowedHosts": ["pictures.example.com"]},
    "decode": {"replicas": 2, "extraArgs": ["--gpu-memory-utilization=0.8"]},
}


def local(topology, contract=DecodeContract.AUTO):
    wish = deployment(topology, {**LAPTOP, "decode": {"contract": str(contract)}})
    site = LocalSite.allocate(
        wish, model="/models/tiny", embedding_store="/run/embeddings", stage_token="t" * 32, ports=count(8000)
    )
    return render(wish, site)


def cluster(topology, contract=DecodeContract.AUTO):
    wish = deployment(topology, {**CLUSTER, "decode": {**CLUSTER["decode"], "contract": str(contract)}})
    return render(wish, ClusterSite.of(wish))


def readable(rendered):
    """One line per flag, with its values."""
    return {
        role: {"args": " ".join(launch["args"]).replace(" --", "\n--").split("\n"), "env": launch["env"]}
        for role, launch in rendered.items()
    }


def golden(topology):
    file = GOLDENS / f"{topology.replace('/', '-').lower()}.yaml"
    if os.environ.get("MMDISAGG_UPDATE_GOLDENS"):
        planned = {"local": readable(local(topology)), "cluster": readable(cluster(topology))}
        file.write_text(yaml.safe_dump(planned, sort_keys=False, width=1000))
    return yaml.safe_load(file.read_text())


def contracts(topology):
    return DecodeContract if topology in (Topology.E_P_D, Topology.EP_D) else [DecodeContract.AUTO]


EVERY_PLAN = [(topology, contract) for topology in Topology for contract in contracts(topology)]


def expected(planned, contract):
    """A golden with another contract: the router is told, and nothing else changes."""
    router = planned["router"]
    args = [f"--decode-contract {contract}" if "--decode-contract" in arg else arg for arg in router["args"]]
    return {**planned, "router": {**router, "args": args}}


@pytest.mark.parametrize(("topology", "contract"), EVERY_PLAN)
def test_the_plan_is_the_golden_one(topology, contract):
    planned = golden(topology)
    assert readable(local(topology, contract)) == expected(planned["local"], contract)
    assert readable(cluster(topology, contract)) == expected(planned["cluster"], contract)


@pytest.mark.parametrize("topology", Topology)
def test_the_same_wish_gives_the_same_plan(topology):
    assert local(topology) == local(topology)
    assert cluster(topology) == cluster(topology)
