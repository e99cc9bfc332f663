"""Tensors by description: what travels instead of their bytes.

Decode never reads the embedding of a picture whose KV blocks it receives, it only needs a tensor of the
right shape. So the wire carries a descriptor of some hundred bytes, and the worker makes the tensor.
The text form is `mmdisagg.v1:` followed by compact JSON; it stands where vLLM's chat API expects a
base64 tensor, and a media connector reads it there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from .errors import CountMismatchError, DescriptorError, DtypeError, ShapeError
from .grid import Grid, parse_grid, token_count
from .integers import positive_ints

PREFIX: Final = "mmdisagg.v1:"
EMBEDDING_DTYPES: Final = ("float32", "float16", "bfloat16")
VALUE_DTYPES: Final = ("int64", "float32")
MAX_ELEMENTS: Final = 1 << 30
"""Upper bound of the elements of one zero embedding (2 GiB in bfloat16): 32,768 tokens of width 32,768."""
MAX_VALUES: Final = 4096
"""Upper bound of the numbers that one value descriptor spells out."""

Number: TypeAlias = int | float


@dataclass(frozen=True)
class ZeroEmbedding:
    """An all-zero embedding that has been validated but not allocated.

    Attributes:
        shape: (placeholder tokens, embedding width), elements.
        dtype: element type, one of `EMBEDDING_DTYPES`.
        grid: patches per medium, or None in families without a grid.
        merge_size: patches merged per token and axis, or None without a grid.
    """

    shape: tuple[int, int]
    dtype: str
    grid: tuple[Grid, ...] | None
    merge_size: int | None

    @classmethod
    def create(
        cls,
        *,
        image_grid_thw: object,
        embeddings_shape: Sequence[int],
        dtype: str,
        merge_size: int,
        field: str = "image_grid_thw",
    ) -> ZeroEmbedding:
        """Describe the zero embedding of a medium that has a grid.

        Args:
            image_grid_thw: `[t, h, w]`, or several of them whose tokens add up.
            embeddings_shape: `[tokens, width]`, or that with a leading 1.
            dtype: element type, one of `EMBEDDING_DTYPES`.
            merge_size: the model's `spatial_merge_size`.
            field: the grid's name in errors (`video_grid_thw` for a video).

        Raises:
            GridError: the grid is missing, empty or malformed.
            ShapeError: the shape is no sequence of positive integers of rank 2, or too large.
            CountMismatchError: the rows differ from the grid's placeholder tokens.
            DtypeError: unknown element type.
        """
        grids = parse_grid(image_grid_thw, field)
        shape = _matrix_shape(embeddings_shape)
        tokens = token_count(grids, merge_size, field)
        if shape[0] != tokens:
            remedy = f"{field} {[list(g) for g in grids]} has {tokens} placeholder tokens; give as many rows"
            raise CountMismatchError("embeddings_shape", list(shape), remedy)
        return cls(shape, _dtype(dtype, EMBEDDING_DTYPES), grids, merge_size)

    @classmethod
    def rows(cls, *, embeddings_shape: Sequence[int], tokens: int, dtype: str) -> ZeroEmbedding:
        """Describe the zero embedding of a medium without a grid (LLaVA type).

        Args:
            embeddings_shape: `[tokens, width]`, or that with a leading 1.
            tokens: placeholder tokens that the encode stage counted in the expanded prompt.
            dtype: element type, one of `EMBEDDING_DTYPES`.

        Raises:
            ShapeError: the shape is no sequence of positive integers of rank 2, or too large.
            CountMismatchError: the rows differ from `tokens`.
            DtypeError: unknown element type.
        """
        shape = _matrix_shape(embeddings_shape)
        if shape[0] != tokens:
            remedy = f"the expanded prompt has {tokens} placeholder tokens; give as many rows"
            raise CountMismatchError("embeddings_shape", list(shape), remedy)
        return cls(shape, _dtype(dtype, EMBEDDING_DTYPES), None, None)

    def encode(self) -> str:
        """Return the text form."""
        fields: dict[str, object] = {"kind": "zeros", "shape": list(self.shape), "dtype": self.dtype}
        if self.grid is not None:
            fields |= {"grid": [list(grid) for grid in self.grid], "merge": self.merge_size}
        return _text(fields)


@dataclass(frozen=True)
class TensorValues:
    """A small one-dimensional tensor, spelled out: a grid or a timing value.

    Attributes:
        dtype: element type, one of `VALUE_DTYPES`.
        values: the elements, shape [len(values)].
    """

    dtype: str
    values: tuple[Number, ...]

    @classmethod
    def create(cls, dtype: str, values: object) -> TensorValues:
        """Describe a vector.

        Args:
            dtype: `int64` or `float32`.
            values: 1 to `MAX_VALUES` finite numbers; integers only for `int64`.

        Raises:
            DtypeError: unknown element type.
            DescriptorError: the values are no such sequence.
        """
        kind = _dtype(dtype, VALUE_DTYPES)
        if not isinstance(values, list | tuple) or not 0 < len(values) <= MAX_VALUES:
            raise DescriptorError("values", values, f"give a list of 1 to {MAX_VALUES} numbers")
        if not all(_is_number(value, integral=kind == "int64") for value in values):
            raise DescriptorError("values", values, f"give finite numbers that fit {kind}")
        return cls(kind, tuple(values))

    def encode(self) -> str:
        """Return the text form."""
        return _text({"kind": "values", "dtype": self.dtype, "values": list(self.values)})


def decode_descriptor(text: object) -> ZeroEmbedding | TensorValues:
    """Read a descriptor and validate it as strictly as when it was made.

    Raises:
        DescriptorError: no descriptor of this version.
        ContractError: any error of `ZeroEmbedding.create`, `ZeroEmbedding.rows` or `TensorValues.create`.
    """
    if not isinstance(text, str) or not text.startswith(PREFIX):
        raise DescriptorError("descriptor", text, f"embeddings travel as {PREFIX!r} descriptors only")
    try:
        fields = json.loads(text[len(PREFIX) :])
    except (ValueError, RecursionError):
        raise DescriptorError("descriptor", text, "the part after the prefix must be JSON") from None
    if not isinstance(fields, dict):
        raise DescriptorError("descriptor", text, "the part after the prefix must be a JSON object")
    match fields.get("kind"):
        case "values":
            return TensorValues.create(fields.get("dtype", ""), fields.get("values"))
        case "zeros":
            return _zeros(fields)
        case kind:
            raise DescriptorError("kind", kind, "give 'zeros' or 'values'")


def _zeros(fields: dict[str, object]) -> ZeroEmbedding:
    shape: Sequence[int] = fields.get("shape")  # type: ignore[assignment]  # validated by create and rows
    dtype = str(fields.get("dtype"))
    if "grid" not in fields:
        return ZeroEmbedding(_matrix_shape(shape), _dtype(dtype, EMBEDDING_DTYPES), None, None)
    merge: int = fields.get("merge")  # type: ignore[assignment]  # validated by token_count
    return ZeroEmbedding.create(
        image_grid_thw=fields["grid"], embeddings_shape=shape, dtype=dtype, merge_size=merge, field="grid"
    )


def _matrix_shape(value: object) -> tuple[int, int]:
    numbers = positive_ints(value)
    if numbers is None:
        raise ShapeError("embeddings_shape", value, "give [tokens, width] as positive integers")
    if len(numbers) == 3 and numbers[0] == 1:
        numbers = numbers[1:]
    if len(numbers) != 2:
        raise ShapeError("embeddings_shape", value, "give [tokens, width] or [1, tokens, width]")
    if math.prod(numbers) > MAX_ELEMENTS:
        raise ShapeError("embeddings_shape", value, f"at most {MAX_ELEMENTS} elements are allowed")
    return (numbers[0], numbers[1])


def _dtype(value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise DtypeError("dtype", value, f"give one of {', '.join(known)}")
    return value


def _is_number(value: object, *, integral: bool) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return not integral and isinstance(value, float) and math.isfinite(value) and abs(value) < 3e38


def _text(fields: dict[str, object]) -> str:
    return PREFIX + json.dumps(fields, separators=(",", ":"))
