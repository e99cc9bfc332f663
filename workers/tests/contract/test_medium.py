"""From an engine's report to the parts that prefill and decode get."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdisagg_workers.contract import (
    CONTRACT_VERSION,
    FAMILIES,
    ContractError,
    CountMismatchError,
    DecodeForm,
    Geometry,
    GridError,
    IdentityError,
    Limits,
    ModelInfo,
    Placeholder,
    TimingError,
    UnknownFamilyError,
    cache_salt,
    check_identity,
    decode_descriptor,
    decode_part,
    family,
    geometry_from_config,
    medium_from_report,
    placeholder_runs,
    prefill_part,
    resolve_family,
)

IDENTITY = "0123456789abcdef" * 4
QWEN_CONFIG = {
    "model_type": "qwen2_5_vl",
    "image_token_id": 12,
    "video_token_id": 13,
    "text_config": {"hidden_size": 256},
    "vision_config": {"out_hidden_size": 128, "spatial_merge_size": 2},
}
LLAVA_CONFIG = {
    "model_type": "llava",
    "image_token_index": 4,
    "text_config": {"hidden_size": 64},
    "vision_config": {},
}


def info_for(name, width=128, merge=2):
    entry = FAMILIES[name]
    placeholders = {m: Placeholder(12, entry.placeholders[m]) for m in entry.media}
    geometry = Geometry(width, merge if entry.has_grid else None, placeholders)
    limits = Limits(1024, 8, 1, 20 << 20, 40_000_000)
    return ModelInfo(name, "decode", "E/P/D", "r1", "0.32.0", CONTRACT_VERSION, "float32", geometry, limits)


def report(name, modality="image", metadata=None, run=None, identity=IDENTITY):
    return medium_from_report(family(name), info_for(name), modality, identity, metadata or {}, run)


QWENS = ["Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL"]
TIMING = {"Qwen2.5-VL": "second_per_grid_ts", "Qwen3-VL": "timestamps"}


@pytest.mark.parametrize("name", QWENS)
def test_a_picture_reaches_decode_as_grid_and_zero_embedding_of_the_right_shape(name):
    medium = report(name, metadata={"image_grid_thw": [1, 8, 8]})
    part = decode_part(family(name), info_for(name), medium, DecodeForm.ZERO_EMBEDDING)
    assert (part["type"], part["uuid"]) == ("image_embeds", IDENTITY)
    zeros = decode_descriptor(part["image_embeds"]["image_embeds"])
    grid = decode_descriptor(part["image_embeds"]["image_grid_thw"])
    assert (zeros.shape, zeros.dtype, zeros.grid) == ((16, 128), "float32", ((1, 8, 8),))
    assert (grid.dtype, grid.values) == ("int64", (1, 8, 8))


@pytest.mark.parametrize("name", QWENS)
def test_metadata_only_carries_the_grid_and_the_identity(name):
    medium = report(name, metadata={"image_grid_thw": [[1, 8, 8]]})
    expected = {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 8, 8]}, "uuid": IDENTITY}
    assert decode_part(family(name), info_for(name), medium, DecodeForm.METADATA_ONLY) == expected
    assert prefill_part(family(name), info_for(name), medium) == expected


@pytest.mark.case("t10")
@pytest.mark.parametrize("name", TIMING)
def test_a_video_without_its_timing_is_refused(name):
    for value in (None, [], "2.0", [None], [True]):
        with pytest.raises(TimingError, match=TIMING[name]):
            report(name, "video", {"video_grid_thw": [4, 4, 4], TIMING[name]: value})


@pytest.mark.case("t10")
@pytest.mark.parametrize("form", [DecodeForm.ZERO_EMBEDDING, DecodeForm.METADATA_ONLY])
@pytest.mark.parametrize("name", TIMING)
def test_a_video_carries_its_timing_in_every_form(name, form):
    medium = report(name, "video", {"video_grid_thw": [4, 4, 4], TIMING[name]: [0.5, 2.5]})
    payload = decode_part(family(name), info_for(name), medium, form)["video_embeds"]
    timing = payload[TIMING[name]]
    assert (timing if isinstance(timing, list) else list(decode_descriptor(timing).values)) == [0.5, 2.5]
    assert isinstance(timing, list) == (name == "Qwen3-VL")


@pytest.mark.case("c01")
@pytest.mark.parametrize(
    "metadata", [{}, {"image_grid_thw": None}, {"image_grid_thw": []}, {"image_grid_thw": [0, 0, 0]}]
)
def test_a_report_without_a_grid_is_refused(metadata):
    with pytest.raises(GridError, match="image_grid_thw"):
        report("Qwen2.5-VL", metadata=metadata)


@pytest.mark.case("t05")
def test_a_grid_that_contradicts_the_expanded_prompt_is_refused():
    assert report("Qwen2.5-VL", metadata={"image_grid_thw": [1, 8, 8]}, run=16).tokens == 16
    with pytest.raises(CountMismatchError):
        report("Qwen2.5-VL", metadata={"image_grid_thw": [1, 8, 8]}, run=15)


@pytest.mark.case("t06")
def test_llava_rows_come_from_the_expanded_prompt():
    part = decode_part(family("LLaVA"), info_for("LLaVA"), report("LLaVA", run=16), DecodeForm.ZERO_EMBEDDING)
    assert decode_descriptor(part["image_embeds"]).shape == (16, 128)
    for run in (None, 0):
        with pytest.raises(CountMismatchError):
            report("LLaVA", run=run)


@pytest.mark.case("t01", "t02")
@pytest.mark.parametrize("name", QWENS)
def test_a_grid_family_never_decodes_from_expanded_ids(name):
    assert DecodeForm.EXPANDED_PROMPT not in family(name).decode_forms
    medium = report(name, metadata={"image_grid_thw": [1, 8, 8]})
    with pytest.raises(ContractError):
        decode_part(family(name), info_for(name), medium, DecodeForm.EXPANDED_PROMPT)


def test_a_modality_that_the_family_lacks_is_refused():
    with pytest.raises(ContractError, match="image"):
        report("LLaVA", "video", run=16)


@pytest.mark.case("c25")
@pytest.mark.parametrize(
    "identity", ["../../x", "", "ABCDEF0123456789", "0" * 15, "0" * 129, None, 7, "g" * 64, "0" * 64 + "\n"]
)
def test_malformed_identities_are_refused(identity):
    with pytest.raises(IdentityError):
        check_identity(identity)
    with pytest.raises(IdentityError):
        report("LLaVA", run=16, identity=identity)


identities = st.lists(st.text("0123456789abcdef", min_size=16, max_size=32), max_size=4)


@pytest.mark.case("t04", "c25")
@given(identities, identities, st.none() | st.text(), st.none() | st.text())
def test_salts_are_equal_only_for_the_same_media_in_the_same_order_and_the_same_client_salt(
    one, two, mine, yours
):
    same = one == two and mine == yours
    assert (cache_salt(one, mine) == cache_salt(two, yours)) == same
    assert re.fullmatch("[0-9a-f]{64}", cache_salt(one, mine))


@pytest.mark.parametrize(
    ("ids", "runs"), [([], []), ([1, 2], []), ([9, 9, 1, 9], [2, 1]), ([9], [1]), ([1, 9, 9, 9], [3])]
)
def test_runs_of_a_placeholder(ids, runs):
    assert placeholder_runs(ids, 9) == runs


@pytest.mark.parametrize("entry", FAMILIES.values(), ids=FAMILIES)
def test_every_model_type_resolves_to_its_family(entry):
    for model_type in entry.model_types:
        assert resolve_family({"model_type": model_type}) is entry
    assert entry.default_form == entry.decode_forms[0]


@pytest.mark.parametrize(
    "config", [{}, {"model_type": "llama"}, {"model_type": None}, {"model_type": ["qwen2_vl"]}]
)
def test_unknown_families_are_refused_with_the_list_of_known_ones(config):
    with pytest.raises(UnknownFamilyError, match=r"Qwen2\.5-VL"):
        resolve_family(config)
    with pytest.raises(UnknownFamilyError, match="LLaVA"):
        family(config.get("model_type"))


def test_pixtral_is_no_llava_although_it_says_so():
    with pytest.raises(UnknownFamilyError, match="pixtral"):
        resolve_family(LLAVA_CONFIG | {"vision_config": {"model_type": "pixtral"}})
    assert (
        resolve_family(LLAVA_CONFIG | {"vision_config": {"model_type": "clip_vision_model"}}).name == "LLaVA"
    )


@pytest.mark.case("c19")
def test_deepstack_layers_widen_the_embedding():
    vision = {"out_hidden_size": 128, "spatial_merge_size": 2, "deepstack_visual_indexes": [0, 1, 2]}
    config = QWEN_CONFIG | {"vision_config": vision}
    assert geometry_from_config(family("Qwen3-VL"), config).embedding_width == 512
    assert geometry_from_config(family("Qwen2.5-VL"), QWEN_CONFIG).embedding_width == 128


def test_geometry_of_families_without_an_own_output_width():
    qwen2 = {
        "vision_config": {"hidden_size": 96, "embed_dim": 32, "spatial_merge_size": 2},
        "image_token_id": 1,
        "video_token_id": 2,
    }
    assert geometry_from_config(family("Qwen2-VL"), qwen2).embedding_width == 96
    llava = geometry_from_config(family("LLaVA"), LLAVA_CONFIG)
    assert (llava.embedding_width, llava.merge_size, llava.placeholders["image"].token_id) == (64, None, 4)


@pytest.mark.parametrize("missing", ["image_token_id", "video_token_id"])
def test_a_config_without_a_needed_fact_is_refused(missing):
    with pytest.raises(ContractError, match=missing):
        geometry_from_config(family("Qwen2.5-VL"), {k: v for k, v in QWEN_CONFIG.items() if k != missing})


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("Qwen2-VL", "hidden_size"),
        ("Qwen2-VL", "spatial_merge_size"),
        ("Qwen2.5-VL", "out_hidden_size"),
        ("Qwen2.5-VL", "spatial_merge_size"),
        ("Qwen3-VL", "spatial_merge_size"),
        ("Qwen3-VL", "deepstack_visual_indexes"),
    ],
)
@pytest.mark.parametrize("value", [None, "2", True, 0, 2.0])
def test_a_shape_is_never_guessed(name, missing, value):
    vision = {"hidden_size": 8, "out_hidden_size": 8, "spatial_merge_size": 2, "deepstack_visual_indexes": []}
    config = QWEN_CONFIG | {"vision_config": vision}
    assert geometry_from_config(family(name), config).embedding_width == 8
    with pytest.raises(ContractError, match=rf"vision_config\.{missing}"):
        geometry_from_config(family(name), config | {"vision_config": vision | {missing: value}})
    with pytest.raises(ContractError):
        geometry_from_config(family(name), {k: v for k, v in config.items() if k != "vision_config"})


def test_llavas_width_is_that_of_its_text():
    with pytest.raises(ContractError, match=r"text_config\.hidden_size"):
        geometry_from_config(family("LLaVA"), LLAVA_CONFIG | {"text_config": {}})


def test_infos_survive_the_wire_and_name_what_differs():
    info = info_for("Qwen2.5-VL")
    assert ModelInfo.from_json(info.to_json()) == info
    assert info.disagreement(dataclasses.replace(info, role="prefill")) is None
    assert "revision" in info.disagreement(dataclasses.replace(info, revision="r2"))


@given(
    st.text() | st.sampled_from(["{}", "[]", "null", '{"geometry": 3}', '{"geometry": {"placeholders": {}}}'])
)
def test_foreign_infos_are_a_typed_error(text):
    with pytest.raises(ContractError):
        ModelInfo.from_json(text)


def test_an_info_nested_too_deeply_is_a_typed_error():
    with pytest.raises(ContractError):
        ModelInfo.from_json("[" * 100_000)
