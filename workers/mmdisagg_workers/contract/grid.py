"""Grids: how many patches a picture or video has, as (time, height, width).

A grid fixes two things in an M-RoPE model: how many placeholder tokens the medium occupies
(`t * h * w / merge_size ** 2`) and the position of each of them. The count can be checked against
other facts, the positions cannot: a transposed grid has the same count and gives wrong text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from .errors import GridError
from .integers import positive_int, positive_ints

Grid: TypeAlias = tuple[int, int, int]
"""Patches along time, height and width; each at least 1."""

_REMEDY = "give [time, height, width] in patches as positive integers, as the encode stage reported it"


def parse_grid(value: object, field: str = "image_grid_thw") -> tuple[Grid, ...]:
    """Read one grid or a sequence of grids.

    Args:
        value: `[t, h, w]`, or `[[t, h, w], ...]` for several media.
        field: name to show in errors.

    Returns:
        At least one grid, in order.

    Raises:
        GridError: missing, empty, or not made of triples of positive integers.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value:
        raise GridError(field, value, _REMEDY)
    nested = any(isinstance(item, Sequence) and not isinstance(item, str | bytes) for item in value)
    return tuple(_triple(item, field) for item in (value if nested else [value]))


def single_grid(value: object, field: str = "image_grid_thw") -> Grid:
    """Read the grid of exactly one medium: `[t, h, w]`, or that wrapped once.

    Raises:
        GridError: as `parse_grid`, or when there are several grids.
    """
    grids = parse_grid(value, field)
    if len(grids) != 1:
        raise GridError(field, value, "give the grid of one medium: [time, height, width]")
    return grids[0]


def token_count(grids: Sequence[Grid], merge_size: int, field: str = "image_grid_thw") -> int:
    """Count the placeholder tokens of all `grids` together.

    Args:
        grids: patches per medium.
        merge_size: patches merged along height and along width into one token (`spatial_merge_size`).
        field: name to show in errors.

    Raises:
        GridError: height or width is no multiple of `merge_size`, or `merge_size` is no positive integer.
    """
    merge = positive_int(merge_size)
    if merge is None:
        raise GridError("merge_size", merge_size, "give the model's spatial_merge_size, a positive integer")
    for grid in grids:
        if grid[1] % merge or grid[2] % merge:
            raise GridError(field, list(grid), f"height and width must be multiples of merge_size {merge}")
    return sum(math.prod(grid) for grid in grids) // merge**2


def _triple(value: object, field: str) -> Grid:
    numbers = positive_ints(value)
    if numbers is None or len(numbers) != 3:
        raise GridError(field, value, _REMEDY)
    return (numbers[0], numbers[1], numbers[2])
