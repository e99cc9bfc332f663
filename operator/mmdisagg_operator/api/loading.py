"""From a parsed YAML document to the typed resource, or to everything that is wrong with it."""

import difflib
import json
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .errors import Problem, ResourceError
from .resource import MultimodalDisaggDeployment
from .structure import BROKEN_RULES, OWN_ERROR

Location = tuple[int | str, ...]


def load_deployment(document: Mapping[str, Any]) -> MultimodalDisaggDeployment:
    """Check a document and return the resource that it describes.

    Args:
        document: a parsed YAML or JSON object.

    Raises:
        ResourceError: the document is not valid; `problems` names every field to change.
    """
    if not isinstance(document, Mapping):
        raise ResourceError([Problem("", "must be an object with apiVersion, kind, metadata and spec")])
    text = _json(document)
    if "\\u0000" in text and (problems := list(_nul_problems(document))):
        raise ResourceError(problems)
    try:
        return MultimodalDisaggDeployment.model_validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise ResourceError([problem for one in found for problem in _problems(one)]) from None


def _json(document: Mapping[str, Any]) -> str:
    """Only JSON input is checked as the API server does it: lists become tuples, but no text a number."""
    try:
        return json.dumps(document, default=str)
    except (TypeError, ValueError) as error:
        raise ResourceError([Problem("", f"cannot be written as JSON: {error}")]) from None
    except RecursionError:
        raise ResourceError([Problem("", "is nested too deeply")]) from None


def _nul_problems(value: object, location: Location = ()) -> Iterator[Problem]:
    """Texts with a NUL: the kernel ends arguments and environment there, and starts no process with one."""
    if isinstance(value, str) and "\0" in value:
        yield Problem(_path(location), "must not contain a NUL character")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _nul_problems(inner, (*location, str(key)))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _nul_problems(inner, (*location, index))


def _problems(error: ErrorDetails) -> Iterator[Problem]:
    location = error["loc"]
    if error["type"] == BROKEN_RULES:
        for field, message in error["ctx"]["problems"]:
            yield Problem(_path((*location, *field.split("."))), message)
    else:
        yield Problem(_path(location), _message(error))


def _path(location: Location) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(
        "."
    )


def _message(error: ErrorDetails) -> str:
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        return "unknown field" + _did_you_mean(str(error["loc"][-1]), _fields_at(error["loc"][:-1]))
    if kind == "missing":
        return "required"
    if kind in ("enum", "literal_error"):
        allowed = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"{value!r} is none of {', '.join(allowed)}" + _did_you_mean(str(value), allowed)
    if kind == "model_type":
        return f"must be an object, not {value!r}"
    if kind == OWN_ERROR:
        return error["msg"]
    return f"{error['msg'].partition(' ')[2]}, not {value!r}"


def _did_you_mean(word: str, candidates: list[str]) -> str:
    folded = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(word.lower(), folded, n=1)
    return f' (did you mean "{folded[close[0]]}"?)' if close else ""


def _fields_at(location: Location) -> list[str]:
    """Return the field names, as YAML spells them, of the type at a location."""
    model: type[BaseModel] = MultimodalDisaggDeployment
    for part in location:
        if isinstance(part, str):
            names = {field.alias or name: field for name, field in model.model_fields.items()}
            model = next(_models_in(names[part].annotation))
    return [field.alias or name for name, field in model.model_fields.items()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, Annotated, tuple):
        for inner in get_args(annotation):
            yield from _models_in(inner)
