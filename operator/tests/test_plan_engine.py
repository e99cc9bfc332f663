"""Which flags and which environment each role gets, in every topology."""

import json
from itertools import count

import pytest
from documents import deployment

from mmdisagg_operator.api import Role, Topology
from mmdisagg_operator.api.reserved import flag_of, reserved_flag, reserved_variable
from mmdisagg_operator.plan import ClusterSite, Endpoint, LocalSite, aggregated, environment, launches
from mmdisagg_operator.plan.engine import CPU_DEFAULTS

TOKEN = "s" * 32
STAGE_FLAGS = {
    "--mm-encoder-only": "encoder only",
    "--enable-mm-embeds": "embeds",
    "--trust-request-mm-kwargs": "pixels",
}
STORE = {"shared_storage_path": "/store"}

# fmt: off
STAGES = {
    #                  role      flags                     embeddings in or out                     KV blocks
    Topology.E_P_D: {"encode":  ("encoder only, pixels", "ec_producer TcpConnector",            "-"),
                     "prefill": ("embeds",               "ec_consumer TcpConnector",            "kv_producer"),
                     "decode":  ("embeds",               "ec_consumer DecodeGuardConnector",    "kv_consumer")},
    Topology.E_PD:  {"encode":  ("encoder only, pixels", "ec_producer TcpConnector",            "-"),
                     "decode":  ("embeds",               "ec_consumer TcpConnector",            "-")},
    Topology.EP_D:  {"prefill": ("pixels",               "ec_both ReportingConnector",          "kv_producer"),
                     "decode":  ("embeds",               "ec_consumer DecodeGuardConnector",    "kv_consumer")},
    Topology.PD:    {"decode":  ("pixels",               "-",                                   "-")},
}
# fmt: on
EVERY_ROLE = [(topology, role) for topology, roles in STAGES.items() for role in roles]


def planned(topology, change=None, site=None):
    wish = deployment(topology, change)
    return launches(wish, site or laptop(wish))


def laptop(wish):
    return LocalSite.allocate(
        wish, model="/model", embedding_store="/store", stage_token=TOKEN, ports=count(8000)
    )


def value(launch, flag):
    return launch.args[launch.args.index(flag) + 1] if flag in launch.args else None


def config(launch, flag):
    return json.loads(value(launch, flag) or "{}")


def stage(launch):
    flags = ", ".join(word for flag, word in STAGE_FLAGS.items() if flag in launch.args)
    embeddings, kv = config(launch, "--ec-transfer-config"), config(launch, "--kv-transfer-config")
    return (
        flags,
        f"{embeddings['ec_role']} {embeddings['ec_connector']}" if embeddings else "-",
        kv.get("kv_role", "-"),
    )


@pytest.mark.case("c10")
@pytest.mark.parametrize("topology", Topology)
def test_each_role_has_its_part_in_the_topology(topology):
    found = {
        str(role): stage(replicas[0]) for role, replicas in planned(topology).items() if role != "router"
    }
    assert found == STAGES[topology]


@pytest.mark.case("c10")
@pytest.mark.parametrize(
    ("topology", "role"), [pair for pair in EVERY_ROLE if STAGES[pair[0]][pair[1]][0] == "embeds"]
)
def test_who_gets_embedding_parts_accepts_them_with_no_user_action(topology, role):
    assert "--enable-mm-embeds" in planned(topology)[Role(role)][0].args


@pytest.mark.parametrize(("topology", "role"), EVERY_ROLE)
def test_what_must_agree_is_the_same_in_every_role(topology, role):
    change = {
        "media": {"limits": {"images": 3, "videos": 0, "bytes": "1500k", "pixels": "2M"}},
        "engine": {"extraArgs": ["--block-size=32"], "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
    }
    launch = planned(topology, change)[Role(role)][0]
    assert value(launch, "--role") == role
    assert value(launch, "--model") == "/model"
    assert value(launch, "--served-model-name") == "model"
    assert value(launch, "--max-model-len") == "4096"
    assert json.loads(value(launch, "--limit-mm-per-prompt")) == {"image": 3, "video": 0}
    assert value(launch, "--middleware") == "mmdisagg_workers.engine.guard.StageGuard"
    assert "--enable-prompt-tokens-details" in launch.args
    assert "--block-size=32" in launch.args
    assert launch.env["NCCL_DEBUG"] == "INFO"
    assert launch.env[environment.TOPOLOGY] == topology
    assert launch.env[environment.FAMILY] == "Auto"
    assert json.loads(launch.env[environment.MEDIA]) == {
        "allowedHosts": [],
        "allowPrivateNetworks": False,
        "limits": {"images": 3, "videos": 0, "bytes": 1_500_000, "pixels": 2_000_000},
    }
    assert launch.env[environment.MAX_IMAGE_PIXELS] == "2000000"
    assert launch.env[environment.STAGE_TOKEN] == TOKEN


@pytest.mark.parametrize("topology", Topology)
def test_engines_of_one_deployment_share_one_revision(topology):
    engines = [replicas[0] for role, replicas in planned(topology).items() if role is not Role.ROUTER]
    assert len({launch.env[environment.REVISION] for launch in engines}) == 1


@pytest.mark.parametrize(("topology", "role"), EVERY_ROLE)
def test_connectors_are_the_workers_own_and_only_the_shared_volume_knows_a_path(topology, role):
    change = {"handoff": {"embedding": "SharedVolume"}} if "encode" in STAGES[topology] else {}
    embeddings = config(planned(topology, change)[Role(role)][0], "--ec-transfer-config")
    if embeddings:
        assert embeddings["ec_connector_module_path"] == "mmdisagg_workers.engine.encoder_cache"
        shared = embeddings["ec_connector"] == "SharedVolumeConnector"
        assert embeddings.get("ec_connector_extra_config") == (STORE if shared else None)


@pytest.mark.parametrize(("device", "buffer"), [("Cpu", "cpu"), ("Cuda", None)])
def test_kv_blocks_are_buffered_where_the_engine_computes(device, buffer):
    change = {"engine": {"device": device}}
    for role in (Role.PREFILL, Role.DECODE):
        kv = config(planned(Topology.E_P_D, change)[role][0], "--kv-transfer-config")
        assert (kv["kv_connector"], kv.get("kv_buffer_device")) == ("NixlConnector", buffer)


@pytest.mark.case("t08")
@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_lost_kv_blocks_are_never_recomputed_from_zero_embeddings(role):
    kv = config(planned(Topology.EP_D)[role][0], "--kv-transfer-config")
    assert kv["kv_load_failure_policy"] == "fail"


@pytest.mark.parametrize(("topology", "role"), EVERY_ROLE)
def test_prefix_caching_stays_on(topology, role):
    assert not any("prefix-caching" in arg for arg in planned(topology)[Role(role)][0].args)


@pytest.mark.case("c12")
@pytest.mark.parametrize("topology", Topology)
def test_the_side_channel_of_a_pod_is_the_pods_own_address(topology):
    wish = deployment(topology)
    for role, (launch, *_) in launches(wish, ClusterSite.of(wish)).items():
        moves_kv = "--kv-transfer-config" in launch.args
        assert launch.env.get(environment.SIDE_CHANNEL_HOST) == ("$(POD_IP)" if moves_kv else None), role
        if moves_kv:
            assert launch.references[environment.POD_IP].path == "status.podIP"


@pytest.mark.case("c12")
def test_local_engines_have_side_channels_of_their_own():
    plan = planned(Topology.E_P_D, {"decode": {"replicas": 2}})
    channels = [
        (launch.env[environment.SIDE_CHANNEL_HOST], launch.env[environment.SIDE_CHANNEL_PORT])
        for role in (Role.PREFILL, Role.DECODE)
        for launch in plan[role]
    ]
    assert len(set(channels)) == 3
    assert {host for host, _ in channels} == {"127.0.0.1"}


def test_engines_on_cpus_get_defaults_that_users_may_override():
    change = {
        "engine": {"device": "Cpu", "env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "4"}]},
        "decode": {"env": [{"name": "OMP_NUM_THREADS", "value": "8"}]},
    }
    plan = planned(Topology.E_P_D, change)
    assert plan[Role.PREFILL][0].env.items() >= {**CPU_DEFAULTS, "VLLM_CPU_KVCACHE_SPACE": "4"}.items()
    assert plan[Role.DECODE][0].env["OMP_NUM_THREADS"] == "8"


def test_engines_on_gpus_get_nothing_of_that():
    assert not CPU_DEFAULTS.keys() & planned(Topology.E_P_D)[Role.DECODE][0].env.keys()


def test_a_roles_own_arguments_come_last():
    change = {"engine": {"extraArgs": ["--max-num-seqs=8"]}, "decode": {"extraArgs": ["--max-num-seqs=2"]}}
    plan = planned(Topology.E_P_D, change)
    assert plan[Role.DECODE][0].args[-2:] == ("--max-num-seqs=8", "--max-num-seqs=2")
    assert plan[Role.PREFILL][0].args[-1] == "--max-num-seqs=8"


def test_a_media_policy_reaches_engines_and_router():
    change = {"media": {"allowedHosts": ["a.example", "127.0.0.1"], "allowPrivateNetworks": True}}
    for replicas in planned(Topology.E_P_D, change).values():
        media = json.loads(replicas[0].env[environment.MEDIA])
        assert (media["allowedHosts"], media["allowPrivateNetworks"]) == (["a.example", "127.0.0.1"], True)


@pytest.mark.case("c05")
def test_a_deployment_without_media_limits_everything_to_zero():
    change = {"media": {"limits": {"images": 0, "videos": 0}}}
    launch = planned(Topology.PD, change)[Role.DECODE][0]
    assert value(launch, "--limit-mm-per-prompt") == '{"image":0,"video":0}'


@pytest.mark.case("c18")
@pytest.mark.parametrize("topology", Topology)
def test_the_router_knows_the_limits_it_checks_before_any_encode(topology):
    launch = planned(topology)[Role.ROUTER][0]
    assert json.loads(launch.env[environment.MEDIA])["limits"]["images"] == 8


@pytest.mark.parametrize(("topology", "role"), EVERY_ROLE)
def test_users_can_set_no_flag_and_no_variable_that_the_plan_sets(topology, role):
    launch = planned(topology)[Role(role)][0]
    assert [flag for flag in map(flag_of, launch.args) if flag and reserved_flag(flag) is None] == []
    assert [name for name in launch.env if not reserved_variable(name)] == []


def test_the_yardstick_is_one_engine_like_decode_but_in_nobodys_path():
    change = {
        "engine": {"device": "Cpu", "extraArgs": ["--block-size=32"]},
        "decode": {"extraArgs": ["--seed=1"]},
    }
    wish = deployment(Topology.E_P_D, change)
    launch = aggregated(wish, laptop(wish), Endpoint("127.0.0.1", 9000))
    decode = launches(wish, laptop(wish))[Role.DECODE][0]
    assert (value(launch, "--role"), value(launch, "--port")) == ("aggregated", "9000")
    assert stage(launch) == ("pixels", "-", "-")
    assert launch.args[-2:] == decode.args[-2:] == ("--block-size=32", "--seed=1")
    assert launch.env[environment.REVISION] == decode.env[environment.REVISION]
    assert environment.STAGE_TOKEN not in launch.env
    assert environment.SIDE_CHANNEL_PORT not in launch.env
