"""Whole-number quantities as Kubernetes spells them: `20Mi` bytes, `40M` pixels, or a plain integer.

Fractions and zero are refused: a limit of `1.5Mi` is `1536Ki`, and a limit of nothing serves nothing.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, WithJsonSchema

from .structure import refused

PATTERN: Final = r"^(0*[1-9][0-9]*)(k|M|G|T|Ki|Mi|Gi|Ti)?$"
_FACTORS: Final[Mapping[str, int]] = {
    "": 1,
    **{suffix: 1000**power for power, suffix in enumerate("kMGT", start=1)},
    **{suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1)},
}
_MAXIMUM: Final = 2**50
_LARGEST: Final = "1024Ti"
"""The same in Kubernetes' spelling: more is a typo, and JSON readers would no longer take it for exact."""

_BOUND: Final[dict[str, Any]] = {
    "rule": f"type(self) == int ? self <= {_MAXIMUM} : quantity(self).compareTo(quantity('{_LARGEST}')) <= 0",
    "message": f"at most {_LARGEST}",
}


def parse_quantity(value: object) -> int:
    """Return the number that a quantity stands for.

    Args:
        value: a positive integer, or text such as `20Mi` or `40M`.

    Raises:
        ValueError: anything else: zero, a fraction, an unknown suffix, more than 1024Ti.
    """
    number = _number(value)
    if number is None or number < 1:
        raise refused(f"{value!r} is no quantity; write a positive whole number such as 20, 20Mi or 40M")
    if number > _MAXIMUM:
        raise refused(f"{value!r} is too much: {_BOUND['message']}")
    return number


def _number(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    written = re.fullmatch(PATTERN, value) if isinstance(value, str) else None
    return int(written[1]) * _FACTORS[written[2] or ""] if written else None


def _storage_text(value: object) -> str:
    parse_quantity(value)
    return str(value)


_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "minimum": 1,
    "maxLength": 24,
    "pattern": PATTERN,
    "x-kubernetes-int-or-string": True,
    "x-kubernetes-validations": [_BOUND],
}

Quantity = Annotated[int, BeforeValidator(parse_quantity), WithJsonSchema(_SCHEMA)]
"""A count that YAML may spell with a suffix; an int in Python."""

StorageSize = Annotated[str, BeforeValidator(_storage_text), WithJsonSchema(_SCHEMA)]
"""A size that goes into Kubernetes objects as it was written."""
