"""The base of every type in the resource, and the rules that tie its fields together.

A rule is written once, next to the fields it speaks about, in both languages: Python for `render`, `up` and
the operator, CEL for the API server, where it travels in the type's JSON schema.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

_S = TypeVar("_S")
_MARK = "__rule__"

BROKEN_RULES = "broken_rules"
"""Pydantic error type that carries broken rules; its context holds `problems`: [(field, message)]."""

OWN_ERROR = "refused"
"""Pydantic error type of our own checks of single values: the message is complete as it stands."""


def refused(message: str) -> PydanticCustomError:
    """Return the error to raise for a single value, with a message that needs no value added."""
    return PydanticCustomError(OWN_ERROR, "{message}", {"message": message})


@dataclass(frozen=True)
class Rule:
    """A condition between fields of one type.

    Attributes:
        field: the field that a broken rule is reported on, relative to the type, dotted.
        message: what is wrong and what to write instead.
        cel: the same condition for the API server; `self` is an object of the type.
        holds: the condition; takes the object.
    """

    field: str
    message: str
    cel: str
    holds: Callable[[Any], bool]


def rule(field: str, message: str, *, cel: str) -> Callable[[Callable[[_S], bool]], Callable[[_S], bool]]:
    """Make a method of a `Structure` one of its rules; see `Rule` for the arguments."""

    def mark(method: Callable[[_S], bool]) -> Callable[[_S], bool]:
        setattr(method, _MARK, Rule(field, message, cel, method))
        return method

    return mark


def _publish_rules(schema: dict[str, Any], structure: type["Structure"]) -> None:
    published = [
        {"rule": rule.cel, "message": rule.message, "fieldPath": f".{rule.field}"}
        for rule in structure.rules()
    ]
    if published:
        schema["x-kubernetes-validations"] = published


class Structure(BaseModel):
    """A frozen part of the resource: camelCase in YAML, unknown fields refused, types never coerced."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        json_schema_extra=_publish_rules,
        strict=True,
        use_attribute_docstrings=True,
    )

    @classmethod
    def rules(cls) -> Iterator[Rule]:
        """Yield the rules of this type, inherited ones first, in the order of their definition."""
        for base in reversed(cls.__mro__):
            yield from (getattr(m, _MARK) for m in vars(base).values() if hasattr(m, _MARK))

    @model_validator(mode="after")
    def _keep_rules(self) -> Self:
        broken = [(rule.field, rule.message) for rule in self.rules() if not rule.holds(self)]
        if broken:
            raise PydanticCustomError(BROKEN_RULES, "{problems}", {"problems": broken})
        return self
