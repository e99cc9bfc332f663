"""Family and shape facts from config.json."""

import json

import pytest

from mmdisagg_workers.engine.model_facts import model_facts, read_config
from mmdisagg_workers.engine.start_errors import BadSettings, UnknownFamily

QWEN = {
    "model_type": "qwen2_5_vl",
    "image_token_id": 12,
    "video_token_id": 13,
    "text_config": {"hidden_size": 128},
    "vision_config": {"out_hidden_size": 128, "spatial_merge_size": 2},
}


def test_auto_is_resolved_from_the_config():
    facts = model_facts(QWEN)
    assert facts.family.name == "Qwen2.5-VL"
    assert (facts.geometry.embedding_width, facts.geometry.merge_size) == (128, 2)


def test_the_right_name_is_accepted():
    assert model_facts(QWEN, "Qwen2.5-VL") == model_facts(QWEN)


@pytest.mark.parametrize("named", ["Qwen3-VL", "LLaVA", "Pixtral"])
def test_another_name_than_the_config_says_is_refused(named):
    with pytest.raises(UnknownFamily, match=named):
        model_facts(QWEN, named)


@pytest.mark.parametrize("config", [{}, {"model_type": "gpt2"}, {"model_type": 3}])
def test_an_unknown_model_is_refused_with_the_known_families(config):
    with pytest.raises(UnknownFamily, match=r"known families: Qwen2-VL .*Qwen3-VL .*LLaVA"):
        model_facts(config)


def test_a_config_without_placeholder_is_refused():
    with pytest.raises(BadSettings, match="image_token_id"):
        model_facts({key: value for key, value in QWEN.items() if key != "image_token_id"})


def test_the_config_of_a_directory_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    assert read_config(str(tmp_path))["image_token_id"] == 12


def test_what_the_file_leaves_out_is_the_default_of_its_class(tmp_path):
    # As llava-hf/llava-1.5-7b-hf is published: the width of its text model is nowhere in the file.
    published = {
        "model_type": "llava",
        "image_token_index": 32000,
        "text_config": {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096},
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "num_attention_heads": 16},
    }
    (tmp_path / "config.json").write_text(json.dumps(published))
    facts = model_facts(read_config(str(tmp_path)))
    assert facts.geometry.embedding_width == 4096
    assert facts.geometry.placeholders["image"].token_id == 32000


def test_a_config_that_its_class_refuses_is_refused(tmp_path):
    broken = QWEN | {"vision_config": {"depth": "many"}}
    (tmp_path / "config.json").write_text(json.dumps(broken))
    with pytest.raises(BadSettings, match="--model"):
        read_config(str(tmp_path))


def test_a_config_of_an_unknown_class_is_read_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nobody-knows", "x": 1}')
    assert read_config(str(tmp_path)) == {"model_type": "nobody-knows", "x": 1}


def test_a_directory_without_config_is_refused(tmp_path):
    with pytest.raises(BadSettings, match="--model"):
        read_config(str(tmp_path))
