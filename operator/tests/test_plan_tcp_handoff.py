"""Embeddings over TCP: arguments, ports and who may connect."""

import json
from itertools import count

import pytest
from documents import deployment
from test_plan_objects import container, manifests, mounts, named

from mmdisagg_operator.api import Role, Topology
from mmdisagg_operator.plan import ClusterSite, LocalSite, launches, revision

TCP = {"handoff": {"embedding": "Tcp"}}
GIB = 2**30


def planned(topology=Topology.E_P_D, change=TCP, local=False):
    wish = deployment(topology, change)
    site = (
        LocalSite.allocate(wish, model="m", embedding_store="/s", stage_token="t" * 32, ports=count(8000))
        if local
        else ClusterSite.of(wish)
    )
    return launches(wish, site)


def handoff(launch):
    return json.loads(launch.args[launch.args.index("--ec-transfer-config") + 1])


@pytest.mark.parametrize(("topology", "consumer"), [("E/P/D", "prefill"), ("E/PD", "decode")])
def test_encode_serves_at_the_pods_address_and_its_consumer_fetches(topology, consumer):
    plan = planned(Topology(topology))
    module = "mmdisagg_workers.engine.tcp_handoff.connector"
    assert handoff(plan[Role.ENCODE][0]) == {
        "ec_connector": "TcpConnector",
        "ec_connector_module_path": module,
        "ec_role": "ec_producer",
        "ec_connector_extra_config": {"capacity": 4 * GIB, "host": "$(POD_IP)", "port": 5700},
    }
    assert handoff(plan[Role(consumer)][0]) == {
        "ec_connector": "TcpConnector",
        "ec_connector_module_path": module,
        "ec_role": "ec_consumer",
        "ec_connector_extra_config": {"capacity": 4 * GIB},
    }


def test_decode_keeps_its_guard():
    assert handoff(planned()[Role.DECODE][0])["ec_connector"] == "DecodeGuardConnector"


def test_tcp_is_the_default_and_naming_a_volume_chooses_it():
    assert planned(change={}) == planned()
    volume = planned(change={"handoff": {"sharedVolume": {"capacity": "5Gi"}}})
    assert handoff(volume[Role.ENCODE][0])["ec_connector"] == "SharedVolumeConnector"


def test_the_capacity_is_the_wished_one():
    plan = planned(change={"handoff": {"tcp": {"capacity": "512Mi"}}})
    for role in (Role.ENCODE, Role.PREFILL):
        assert handoff(plan[role][0])["ec_connector_extra_config"]["capacity"] == GIB // 2


def test_every_local_encode_engine_has_an_embedding_port_of_its_own():
    plan = planned(change={**TCP, "encode": {"replicas": 2}}, local=True)
    places = [handoff(launch)["ec_connector_extra_config"] for launch in plan[Role.ENCODE]]
    assert [place["host"] for place in places] == ["127.0.0.1"] * 2
    assert len({place["port"] for place in places}) == 2


def test_engines_with_different_handoffs_do_not_belong_together():
    assert revision(deployment(change=TCP).spec) != revision(
        deployment(change={"handoff": {"embedding": "SharedVolume"}}).spec
    )


@pytest.mark.parametrize(("topology", "consumer"), [("E/P/D", "prefill"), ("E/PD", "decode")])
def test_only_the_consumers_pods_may_connect_to_the_embedding_port(topology, consumer):
    found = manifests(Topology(topology), TCP)
    rules = named(found, "NetworkPolicy", "demo-encode")["spec"]["ingress"]
    (rule,) = (rule for rule in rules if rule["ports"] == [{"protocol": "TCP", "port": 5700}])
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"]["mmdisagg.io/role"] == consumer
    assert {"name": "embeddings", "containerPort": 5700, "protocol": "TCP"} in container(
        "encode", TCP, Topology(topology)
    )["ports"]


def test_no_volume_is_shared_and_no_claim_made():
    assert not [m for m in manifests(change=TCP) if m["kind"] == "PersistentVolumeClaim"]
    assert all("/embeddings" not in mounts(role, TCP) for role in ("encode", "prefill", "decode"))


def test_a_shared_volume_needs_no_embedding_port():
    change = {"handoff": {"sharedVolume": {"capacity": "5Gi"}}}
    rules = named(manifests(change=change), "NetworkPolicy", "demo-encode")["spec"]["ingress"]
    assert len(rules) == 1
    assert {port["name"] for port in container("encode", change)["ports"]} == {"http", "handshake"}
