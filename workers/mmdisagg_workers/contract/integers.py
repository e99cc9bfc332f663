"""Strict reading of positive integers: `numpy` integers pass, `bool`, floats and strings do not."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex, cast


def positive_int(value: object) -> int | None:
    """Return `value` as an `int` greater than zero, or None when it is not one.

    Any type with `__index__` counts (`numpy.int64` too), except `bool`: `True` as a dimension is a
    caller's mistake, not a 1.
    """
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        return None
    try:
        number = operator.index(cast(SupportsIndex, value))
    except TypeError:
        return None
    return number if number > 0 else None


def positive_ints(value: object) -> tuple[int, ...] | None:
    """Return a sequence of positive integers as a tuple, or None when `value` is anything else."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return None
    numbers = tuple(positive_int(item) for item in value)
    return None if None in numbers else cast("tuple[int, ...]", numbers)
