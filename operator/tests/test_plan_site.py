"""Addresses and paths: a laptop's processes, a cluster's pods."""

from itertools import count
from pathlib import PurePosixPath

import pytest
from documents import deployment
from hypothesis import given
from hypothesis import strategies as st

from mmdisagg_operator.api import Role, Topology
from mmdisagg_operator.plan import (
    ClusterSite,
    FieldReference,
    LocalSite,
    SecretReference,
    environment,
    launches,
    local_model,
)


def ports_of(place):
    return [p.port for p in (place.http, place.side_channel, place.embeddings) if p is not None]


def allocate(wish, ports=None):
    return LocalSite.allocate(
        wish, model="m", embedding_store="/s", stage_token="t" * 32, ports=ports or count(8000)
    )


@given(
    st.sampled_from(list(Topology)),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_no_two_local_processes_share_a_port(topology, encode, prefill, decode, router):
    counts = {"encode": encode, "prefill": prefill, "decode": decode}
    roles = {role: {"replicas": number} for role, number in counts.items()}
    present = {role: roles[role] for role in roles if deployment(topology).spec.role(Role(role))}
    handoff = {"embedding": "Tcp"} if "encode" in present else {}
    wish = deployment(topology, {**present, "router": {"replicas": router}, "handoff": handoff})
    site = allocate(wish)
    places = [place for replicas in site.engines.values() for place in replicas]
    ports = [port for place in places for port in ports_of(place)]
    assert len({*ports, site.router.port}) == len(ports) + 1
    assert all(place.embeddings for place in site.engines.get(Role.ENCODE, ()))
    assert {role: len(replicas) for role, replicas in site.engines.items()} == {
        role: max(1, counts[role]) for role in present
    }


def test_the_router_is_told_every_replica():
    wish = deployment(Topology.E_P_D, {"encode": {"replicas": 2}})
    args = launches(wish, allocate(wish))[Role.ROUTER][0].args
    at = args.index("--encode")
    assert args[at + 1 : at + 4] == ("http://127.0.0.1:8000", "http://127.0.0.1:8002", "--prefill")


def roles_given(launch):
    return [arg for arg in launch.args if arg in ("--encode", "--prefill", "--decode")]


@pytest.mark.parametrize("topology", Topology)
def test_the_router_of_a_machine_is_told_the_roles_that_exist(topology):
    wish = deployment(topology)
    launch = launches(wish, allocate(wish))[Role.ROUTER][0]
    assert roles_given(launch) == [f"--{role}" for role in ClusterSite.of(wish).engines]
    assert "--discover" not in launch.args


def test_the_router_of_a_cluster_is_the_same_whatever_roles_there_are():
    planned = [launches(wish, ClusterSite.of(wish))[Role.ROUTER][0] for wish in map(deployment, Topology)]
    assert all(launch.args == planned[0].args and launch.env == planned[0].env for launch in planned)
    assert option(planned[0], "--discover") == "demo"
    assert roles_given(planned[0]) == []


def option(launch, name):
    return launch.args[launch.args.index(name) + 1]


@pytest.mark.parametrize("site", [allocate, ClusterSite.of])
def test_the_router_gets_its_limits_and_contract(site):
    change = {
        "router": {"requestTimeoutSeconds": 30, "maxInFlight": 7, "tenantHeader": "X-Tenant"},
        "decode": {"contract": "MetadataOnly"},
    }
    wish = deployment(Topology.EP_D, change)
    launch = launches(wish, site(wish))[Role.ROUTER][0]
    assert launch.program == "mmdisagg-router"
    assert option(launch, "--decode-contract") == "MetadataOnly"
    assert option(launch, "--request-timeout") == "30"
    assert option(launch, "--max-in-flight") == "7"
    assert option(launch, "--tenant-header") == "X-Tenant"


@pytest.mark.parametrize("site", [allocate, ClusterSite.of])
def test_nobody_is_told_apart_where_no_header_is_named(site):
    wish = deployment()
    assert "--tenant-header" not in launches(wish, site(wish))[Role.ROUTER][0].args


@pytest.mark.parametrize(
    ("model", "loaded"),
    [
        ({}, "org/model"),
        ({"source": "Path", "name": None, "path": "../../models/tiny"}, "/repository/models/tiny"),
        ({"source": "Path", "name": None, "path": "/data/tiny"}, "/data/tiny"),
    ],
)
def test_a_local_model_path_is_relative_to_the_yaml_file(model, loaded):
    wish = deployment(change={"model": model})
    assert local_model(wish, PurePosixPath("/repository/examples/local")) == loaded


@pytest.mark.parametrize(
    ("model", "loaded"),
    [
        ({}, "org/model"),
        ({"source": "Path", "name": None, "path": "/data/tiny"}, "/data/tiny"),
        ({"source": "Path", "name": None, "path": "../../models/tiny"}, "/model"),
    ],
)
def test_a_model_path_in_pods_is_its_mount(model, loaded):
    assert ClusterSite.of(deployment(change={"model": model})).model == loaded


def test_pods_take_secrets_by_reference():
    change = {"model": {"tokenSecretRef": {"name": "hub", "key": "token"}}}
    wish = deployment(Topology.E_P_D, change)
    plan = launches(wish, ClusterSite.of(wish))
    stage_token = SecretReference("demo-stage-token", "token")
    assert plan[Role.ENCODE][0].references == {
        environment.STAGE_TOKEN: stage_token,
        environment.POD_IP: FieldReference("status.podIP"),
        environment.HUB_TOKEN: SecretReference("hub", "token"),
    }
    assert plan[Role.ROUTER][0].references == {environment.STAGE_TOKEN: stage_token}
    assert all(environment.STAGE_TOKEN not in launch.env for (launch,) in plan.values())


def test_every_role_of_a_cluster_has_one_pod_template():
    wish = deployment(Topology.E_P_D, {"decode": {"replicas": 5}})
    assert {len(replicas) for replicas in launches(wish, ClusterSite.of(wish)).values()} == {1}
