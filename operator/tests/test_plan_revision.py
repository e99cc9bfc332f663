"""The revision changes with what engines must agree on, and with nothing else."""

import pytest
from documents import deployment

from mmdisagg_operator.api import Topology
from mmdisagg_operator.plan import revision

BASE = revision(deployment().spec)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"name": "org/other"}},
        {"model": {"servedName": "other"}},
        {"model": {"family": "Qwen2.5-VL"}},
        {"model": {"source": "Path", "name": None, "path": "org/model"}},
        {"image": "worker:2"},
        {"engine": {"maxModelLen": 4097}},
        {"engine": {"device": "Cpu"}},
        {"engine": {"extraArgs": ["--dtype=float32"]}},
        {"engine": {"env": [{"name": "A", "value": "1"}]}},
        {"media": {"limits": {"images": 9}}},
        {"media": {"limits": {"pixels": 1}}},
    ],
)
def test_it_changes_with_what_must_agree(change):
    assert revision(deployment(change=change).spec) != BASE


@pytest.mark.parametrize(
    "change",
    [
        {"decode": {"replicas": 9}},
        {"prefill": {"resources": {"limits": {"nvidia.com/gpu": 2}}}},
        {"decode": {"scheduling": {"nodeSelector": {"pool": "gpu"}}}},
        {"decode": {"extraArgs": ["--max-num-seqs=4"]}},
        {"decode": {"contract": "MetadataOnly"}},
        {"router": {"replicas": 3}},
        {"rollout": {"strategy": "Recreate"}},
        {"media": {"allowedHosts": ["a.example"]}},
        {"media": {"limits": {"bytes": 20971520}}},
        {"model": {"tokenSecretRef": {"name": "hub", "key": "token"}}},
        {"handoff": {"embedding": "Tcp", "kv": "Nixl"}},
    ],
)
def test_it_stays_with_everything_else(change):
    assert revision(deployment(change=change).spec) == BASE


@pytest.mark.parametrize("topology", Topology)
def test_it_does_not_tell_which_roles_exist(topology):
    assert revision(deployment(topology).spec) == BASE


def test_it_is_sixteen_hexadecimal_digits():
    assert len(BASE) == 16
    assert int(BASE, 16) >= 0
