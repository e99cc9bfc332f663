"""The zero-embedding descriptor: everything is validated before anything could be allocated."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdisagg_workers.contract import (
    ContractError,
    CountMismatchError,
    DescriptorError,
    DtypeError,
    GridError,
    ShapeError,
    TensorValues,
    ZeroEmbedding,
    decode_descriptor,
)
from mmdisagg_workers.contract.descriptor import MAX_ELEMENTS, MAX_VALUES, PREFIX

GRID = [1, 8, 8]


def create(grid=GRID, shape=(16, 128), dtype="float32", merge=2):
    return ZeroEmbedding.create(image_grid_thw=grid, embeddings_shape=shape, dtype=dtype, merge_size=merge)


@pytest.mark.case("c22")
@pytest.mark.parametrize(
    "shape",
    [
        None, 16.0, "16,128", b"\x10\x80", math.nan, 0, True, [], [16], [16, 0], [16, -128], [-16, 128], [16, True],
        [True, 128], [16.0, 128], [16, math.nan], [16, "128"], [16, None], [2, 16, 128], [1, 1, 16, 128],
        {16: 128}, {16, 128}, np.array(16), [[16, 128]], [1 << 40, 1 << 40], [16, MAX_ELEMENTS],
    ],
)  # fmt: skip
def test_a_shape_that_is_no_matrix_of_positive_integers_is_refused(shape):
    with pytest.raises(ShapeError) as caught:
        create(shape=shape)
    assert caught.value.field == "embeddings_shape"
    assert caught.value.remedy


@pytest.mark.case("c22")
@pytest.mark.parametrize(
    "shape", [[16, 128], (16, 128), [1, 16, 128], [np.int64(16), np.int32(128)], range(16, 129, 112)]
)
def test_numpy_integers_and_a_leading_one_are_accepted(shape):
    embedding = create(shape=shape)
    assert embedding.shape == (16, 128)
    assert all(type(n) is int for n in embedding.shape)


@pytest.mark.case("c22", "x04")
@pytest.mark.parametrize(
    "grid",
    [
        None, [], {}, "", "188", 64, [0, 0, 0], [1, 8], [1, 8, 8, 8], [1, 8, -8], [1, 8.0, 8], [1, 8, True], [[]],
        [[1, 8, 8], []], [[1, 8, 8], 4], [[[1, 8, 8]]], [1, 7, 8], [1, 8, 7], [math.inf, 8, 8], ["1", "8", "8"],
    ],
)  # fmt: skip
def test_a_grid_that_is_missing_or_malformed_is_refused(grid):
    with pytest.raises(GridError) as caught:
        create(grid=grid)
    assert "image_grid_thw" in str(caught.value)


@pytest.mark.case("c22")
def test_tokens_of_several_pictures_add_up():
    assert create(grid=[[1, 8, 8], [1, 4, 6]], shape=[22, 128]).shape == (22, 128)
    with pytest.raises(CountMismatchError, match="22 placeholder tokens"):
        create(grid=[[1, 8, 8], [1, 4, 6]], shape=[16, 128])


@pytest.mark.case("t06")
@pytest.mark.parametrize("rows", [15, 17])
def test_rows_must_equal_the_counted_placeholders(rows):
    with pytest.raises(CountMismatchError):
        create(shape=[rows, 128])
    with pytest.raises(CountMismatchError):
        ZeroEmbedding.rows(embeddings_shape=[rows, 128], tokens=16, dtype="float32")


@pytest.mark.parametrize("dtype", ["float64", "int8", "", None, "torch.float32"])
def test_unknown_dtypes_are_refused(dtype):
    with pytest.raises(DtypeError):
        create(dtype=dtype)


@pytest.mark.parametrize("merge", [0, -2, True, 2.0, None, "2"])
def test_merge_size_is_validated(merge):
    with pytest.raises(GridError, match="merge_size"):
        create(merge=merge)


@given(
    time=st.integers(1, 8),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    merge=st.integers(1, 4),
    columns=st.integers(1, 8192),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
)
def test_what_is_encoded_is_what_is_decoded(time, height, width, merge, columns, dtype):
    grid = (time, height * merge, width * merge)
    embedding = ZeroEmbedding.create(
        image_grid_thw=grid, embeddings_shape=[time * height * width, columns], dtype=dtype, merge_size=merge
    )
    assert decode_descriptor(embedding.encode()) == embedding
    assert len(embedding.encode()) < 200


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50))
def test_integer_vectors_survive_the_wire(values):
    vector = TensorValues.create("int64", values)
    assert decode_descriptor(vector.encode()) == vector


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("int64", [1.5]), ("int64", [True]), ("int64", [2**63]), ("float32", [math.nan]), ("float32", [math.inf]),
     ("float32", []), ("float32", None), ("float32", "12"), ("float32", [1e39]), ("float32", [0.0] * (MAX_VALUES + 1))],
)  # fmt: skip
def test_vectors_of_anything_else_are_refused(dtype, values):
    with pytest.raises(DescriptorError):
        TensorValues.create(dtype, values)


@pytest.mark.parametrize(
    "text",
    ["", "gAAAA", PREFIX, PREFIX + "[]", PREFIX + "{}", PREFIX + '{"kind":"ones"}', "mmdisagg.v2:{}", None, 7,
     PREFIX + "[" * 100_000, PREFIX + '{"kind":"zeros"}', PREFIX + '{"kind":"zeros","shape":[1e9,1e9],"dtype":"float32"}',
     PREFIX + '{"kind":"zeros","shape":[16,128],"dtype":"float32","grid":[1,8,8]}',
     PREFIX + '{"kind":"zeros","shape":[9,128],"dtype":"float32","grid":[1,8,8],"merge":2}'],
)  # fmt: skip
def test_foreign_text_is_a_typed_error(text):
    with pytest.raises(ContractError):
        decode_descriptor(text)


@given(st.text() | st.text().map(lambda text: PREFIX + text) | st.binary().map(lambda b: PREFIX + b.hex()))
def test_no_text_crashes_the_decoder(text):
    with pytest.raises(ContractError):
        decode_descriptor(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@given(grid=json_values, shape=json_values, dtype=json_values, merge=json_values)
def test_no_input_gives_anything_but_a_valid_embedding_or_a_typed_error(grid, shape, dtype, merge):
    try:
        embedding = create(grid, shape, dtype, merge)
    except ContractError as error:
        assert error.field
        assert error.remedy
        assert len(str(error)) < 600
    else:
        tokens = sum(math.prod(g) for g in embedding.grid) // embedding.merge_size**2
        assert embedding.shape[0] == tokens
