"""What `load_deployment` says about documents that are not valid, and what it makes of those that are."""

import pytest
import yaml
from documents import REPOSITORY, ROLES, document
from hypothesis import given
from hypothesis import strategies as st

from mmdisagg_operator.api import (
    DecodeContract,
    Device,
    Family,
    MultimodalDisaggDeployment,
    ResourceError,
    Role,
    RolloutStrategy,
    Topology,
    load_deployment,
)


def problems(change, topology=Topology.E_P_D):
    with pytest.raises(ResourceError) as error:
        load_deployment(document(topology, change))
    return [str(problem) for problem in error.value.problems]


@pytest.mark.parametrize("topology", Topology)
def test_the_roles_present_are_the_topology(topology):
    spec = load_deployment(document(topology)).spec
    assert spec.topology is topology
    assert tuple(role for role in Role if spec.engine_role(role)) == ROLES[topology]


def test_what_may_be_left_out_has_its_documented_default():
    spec = load_deployment(document()).spec
    assert (spec.model.family, spec.engine.device) == (Family.AUTO, Device.CUDA)
    assert spec.decode.contract is DecodeContract.AUTO
    assert (spec.media.limits.images, spec.media.limits.videos) == (8, 1)
    assert (spec.media.limits.bytes, spec.media.limits.pixels) == (20 * 2**20, 40 * 10**6)
    assert spec.media.allow_private_networks is False
    assert spec.rollout.strategy is RolloutStrategy.SURGE


def test_replicas_that_are_left_out_belong_to_the_autoscaler():
    assert load_deployment(document()).spec.decode.replicas is None


@pytest.mark.case("c15")
def test_every_engine_gets_eight_gibibytes_of_shared_memory_unless_told_otherwise():
    spec = load_deployment(document(change={"decode": {"shmSize": "16Gi"}})).spec
    assert (spec.encode.shm_size, spec.prefill.shm_size, spec.decode.shm_size) == ("8Gi", "8Gi", "16Gi")


@pytest.mark.case("c13")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"encode": {"replica": 2}}, 'spec.encode.replica: unknown field (did you mean "replicas"?)'),
        ({"decod": {}}, 'spec.decod: unknown field (did you mean "decode"?)'),
        (
            {"media": {"limits": {"image": 1}}},
            'spec.media.limits.image: unknown field (did you mean "images"?)',
        ),
        (
            {"engine": {"max_model_len": 8}},
            'spec.engine.max_model_len: unknown field (did you mean "maxModelLen"?)',
        ),
        (
            {"decode": {"scheduling": {"tolerations": [{}, {"keys": "x"}]}}},
            'spec.decode.scheduling.tolerations[1].keys: unknown field (did you mean "key"?)',
        ),
        ({"decode": {"env": [{"name": "A", "valu": ""}]}}, 'unknown field (did you mean "value"?)'),
        ({"decode": {"zzz": 1}}, "spec.decode.zzz: unknown field"),
    ],
)
def test_an_unknown_field_is_refused_with_its_path(change, problem):
    assert any(found.endswith(problem) for found in problems(change))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"decode": None}, "spec.decode: required"),
        (
            {"engine": {"maxModelLen": "4096"}},
            "spec.engine.maxModelLen: should be a valid integer, not '4096'",
        ),
        ({"engine": {"maxModelLen": True}}, "spec.engine.maxModelLen: should be a valid integer, not True"),
        ({"encode": []}, "spec.encode: must be an object, not []"),
        (
            {"model": {"family": "qwen2.5-vl"}},
            "spec.model.family: 'qwen2.5-vl' is none of Auto, Qwen2-VL, Qwen2.5-VL, Qwen3-VL, LLaVA "
            '(did you mean "Qwen2.5-VL"?)',
        ),
        (
            {"media": {"limits": {"bytes": "20MB"}}},
            "spec.media.limits.bytes: '20MB' is no quantity; write a positive whole number such as 20, 20Mi or 40M",
        ),
        (
            {"engine": {"extraArgs": ["--max-model-len=8"]}},
            "spec.engine.extraArgs[0]: --max-model-len is set by the plan; use spec.engine.maxModelLen",
        ),
    ],
)
def test_a_problem_names_field_and_remedy(change, problem):
    assert problems(change) == [problem]


def test_every_problem_is_told_at_once():
    found = problems({"encode": {"replica": 1}, "decode": None, "engine": {"maxModelLen": 0}})
    assert [problem.partition(":")[0] for problem in found] == [
        "spec.engine.maxModelLen",
        "spec.encode.replica",
        "spec.decode",
    ]


@pytest.mark.parametrize("name", ["", "Demo", "9lives", "a-", "a.b", "a" * 41])
def test_a_name_that_would_break_the_children_is_refused(name):
    with pytest.raises(ResourceError, match=r"metadata\.name"):
        load_deployment({**document(), "metadata": {"name": name}})


@pytest.mark.parametrize(("field", "value"), [("kind", "Deployment"), ("apiVersion", "mmdisagg.io/v2")])
def test_another_kind_of_object_is_refused(field, value):
    with pytest.raises(ResourceError, match=f"{field}: '{value}' is none of"):
        load_deployment({**document(), field: value})


@pytest.mark.parametrize("nothing", [None, [], "text", 1])
def test_what_is_no_object_is_refused(nothing):
    with pytest.raises(ResourceError, match="must be an object with apiVersion"):
        load_deployment(nothing)


def test_what_json_cannot_say_is_refused():
    endless = document()
    endless["spec"]["encode"]["labels"] = endless
    with pytest.raises(ResourceError, match="cannot be written as JSON"):
        load_deployment(endless)


def test_what_is_nested_too_deeply_is_refused():
    deep = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(ResourceError, match="nested too deeply"):
        load_deployment({**document(), "spec": deep})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"engine": {"extraArgs": ["--seed", "\0"]}}, "spec.engine.extraArgs[1]"),
        ({"decode": {"env": [{"name": "A", "value": "a\0b"}]}}, "spec.decode.env[0].value"),
    ],
)
def test_a_nul_that_no_process_could_be_started_with_is_refused(change, field):
    assert problems(change) == [f"{field}: must not contain a NUL character"]
    assert load_deployment(document(change={"engine": {"extraArgs": ["\\u0000"]}}))


def test_what_the_api_server_adds_is_no_problem():
    metadata = {"name": "demo", "uid": "u", "generation": 3, "managedFields": [{}], "resourceVersion": "7"}
    status = {"observedGeneration": 3, "conditions": [], "writtenByANewerOperator": 1}
    loaded = load_deployment({**document(), "metadata": metadata, "status": status})
    assert (loaded.metadata.generation, loaded.status.observed_generation) == (3, 3)


@pytest.mark.parametrize("file", sorted(REPOSITORY.glob("examples/*/*.yaml")), ids=lambda file: file.name)
def test_every_example_loads(file):
    assert load_deployment(yaml.safe_load(file.read_text())).kind == "MultimodalDisaggDeployment"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=8,
)
KEYS = st.sampled_from(["model", "engine", "media", "encode", "decode", "router", "handoff", "rollout", "x"])


@given(st.dictionaries(KEYS, JSON))
def test_nothing_but_a_resource_error_comes_out(change):
    broken = document()
    broken["spec"].update(change)
    try:
        assert isinstance(load_deployment(broken), MultimodalDisaggDeployment)
    except ResourceError as error:
        assert all(problem.path for problem in error.problems)
