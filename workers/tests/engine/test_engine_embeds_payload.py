"""Payloads of embeds parts: what is enough, and what each defect is told."""

import pytest

from mmdisagg_workers.contract import (
    ContractError,
    CountMismatchError,
    DescriptorError,
    Geometry,
    GridError,
    ShapeError,
    TensorValues,
    TimingError,
    ZeroEmbedding,
    family,
)
from mmdisagg_workers.engine.embeds_payload import check_payload

GEOMETRY = Geometry(128, 2, {})
IMAGE = family("Qwen2.5-VL").media["image"]
VIDEO = family("Qwen2.5-VL").media["video"]
VIDEO3 = family("Qwen3-VL").media["video"]
LLAVA = family("LLaVA").media["image"]


def zeros(grid=(1, 16, 16), rows=64, width=128):
    return ZeroEmbedding.create(
        image_grid_thw=grid, embeddings_shape=[rows, width], dtype="float32", merge_size=2
    ).encode()


def values(*numbers, dtype="int64"):
    return TensorValues.create(dtype, list(numbers)).encode()


def bare_zeros(rows=16, width=128):
    return ZeroEmbedding.rows(embeddings_shape=[rows, width], tokens=rows, dtype="float32").encode()


GOOD = [
    ({"image_grid_thw": [1, 16, 16]}, IMAGE),
    ({"image_grid_thw": values(1, 16, 16)}, IMAGE),
    ({"image_grid_thw": values(1, 16, 16), "image_embeds": zeros()}, IMAGE),
    ({"video_grid_thw": [4, 4, 4], "second_per_grid_ts": values(2.0, dtype="float32")}, VIDEO),
    ({"video_grid_thw": [4, 4, 4], "timestamps": [0.5, 2.5]}, VIDEO3),
    (bare_zeros(), LLAVA),
]


@pytest.mark.parametrize(("payload", "fields"), GOOD)
def test_complete_payloads_pass(payload, fields):
    check_payload(payload, fields, GEOMETRY, 1024)


@pytest.mark.case("x04")
@pytest.mark.parametrize(
    "grid", [None, [], [0, 0, 0], [[1, 16, 16]], [1, 16], [1, 15, 16], [True, 2, 2], [1.0, 2, 2], "x", {}, 7]
)
def test_a_bad_grid_is_named(grid):
    with pytest.raises((GridError, DescriptorError), match=r"image_grid_thw|descriptor"):
        check_payload({"image_grid_thw": grid}, IMAGE, GEOMETRY)


@pytest.mark.case("x04")
@pytest.mark.parametrize("payload", [None, "", {}, [], {"image_grid_thw": [1, 16, 16], "other": 1}])
def test_no_grid_at_all_is_an_error(payload):
    with pytest.raises(GridError):
        check_payload(payload, IMAGE, GEOMETRY)


@pytest.mark.case("x03")
@pytest.mark.parametrize("width", [64, 127, 256])
def test_a_wrong_width_is_refused(width):
    with pytest.raises(ShapeError, match="128"):
        check_payload({"image_grid_thw": [1, 16, 16], "image_embeds": zeros(width=width)}, IMAGE, GEOMETRY)
    with pytest.raises(ShapeError, match="128"):
        check_payload(bare_zeros(width=width), LLAVA, GEOMETRY)


def test_rows_that_contradict_the_grid_are_refused():
    other = zeros(grid=(1, 8, 8), rows=16)
    with pytest.raises(CountMismatchError):
        check_payload({"image_grid_thw": [1, 16, 16], "image_embeds": other}, IMAGE, GEOMETRY)


@pytest.mark.parametrize("text", ["AAAA", "", None, 7, values(1, 2, 3)])
def test_only_a_described_zero_embedding_is_taken(text):
    with pytest.raises(DescriptorError):
        check_payload({"image_grid_thw": [1, 16, 16], "image_embeds": text}, IMAGE, GEOMETRY)
    with pytest.raises(DescriptorError):
        check_payload(text, LLAVA, GEOMETRY)


@pytest.mark.case("t10")
@pytest.mark.parametrize("timing", [None, [], ["a"], [True], {}])
def test_a_video_without_its_timing_is_refused(timing):
    with pytest.raises(TimingError, match="second_per_grid_ts"):
        check_payload({"video_grid_thw": [4, 4, 4], "second_per_grid_ts": timing}, VIDEO, GEOMETRY)
    with pytest.raises(TimingError, match="timestamps"):
        check_payload({"video_grid_thw": [4, 4, 4]}, VIDEO3, GEOMETRY)


def test_more_tokens_than_the_model_takes_are_refused_before_anything_is_allocated():
    with pytest.raises(ContractError, match="1024"):
        check_payload({"image_grid_thw": [1, 1000, 1000]}, IMAGE, GEOMETRY, 1024)
