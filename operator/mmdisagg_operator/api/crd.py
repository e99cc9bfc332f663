"""Writes the CustomResourceDefinition that the API server checks resources with.

    python -m mmdisagg_operator.api.crd               # to standard output
    python -m mmdisagg_operator.api.crd --write DIR   # to the CRD's file in DIR
    python -m mmdisagg_operator.api.crd --check DIR   # exit 1 with a diff when that file is out of date

Pydantic's JSON schema is turned into a structural schema (no references, no null, a type on every node); the
API server fills in the same defaults as `load_deployment` and enforces the same rules, as CEL.
"""

import argparse
import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from .resource import GROUP, KIND, NAME_LENGTH, NAME_PATTERN, PLURAL, SHORT_NAME, VERSION
from .resource import MultimodalDisaggDeployment as Deployment

Schema = Mapping[str, Any]

FILE_NAME: Final = f"{GROUP}_{PLURAL}.yaml"
_HEADER: Final = "# Generated from mmdisagg_operator.api by `make crds`. Do not edit.\n"
_NAME_RULE: Final = {
    "rule": f"self.metadata.name.size() <= {NAME_LENGTH} && self.metadata.name.matches('{NAME_PATTERN}')",
    "message": f"metadata.name: at most {NAME_LENGTH} of a-z, 0-9 and '-', a letter first, no '-' last",
}
_AVAILABLE: Final = '.status.conditions[?(@.type=="Available")]'
_COLUMNS: Final = (
    ("Model", "string", ".spec.model.servedName", 0),
    ("Encode", "string", ".status.roles.encode.summary", 0),
    ("Prefill", "string", ".status.roles.prefill.summary", 0),
    ("Decode", "string", ".status.roles.decode.summary", 0),
    ("Ready", "string", f"{_AVAILABLE}.status", 0),
    ("Reason", "string", f"{_AVAILABLE}.reason", 0),
    ("URL", "string", ".status.url", 1),
    ("Age", "date", ".metadata.creationTimestamp", 1),
)
"""Name, type, path and priority; what has priority 1 is shown with `-o wide`.

Age is listed since the API server adds it only where a CRD lists no columns at all; it is wide, since whether
a deployment serves does not depend on it and the line is long.
"""


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD as plain data."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def _version() -> dict[str, Any]:
    columns = [
        {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}
        for name, kind, path, priority in _COLUMNS
    ]
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": columns,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": _root_schema()},
    }


def _root_schema() -> dict[str, Any]:
    schema = Deployment.model_json_schema()
    root = _structural(schema, schema["$defs"])
    plain: dict[str, Any] = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    root["properties"] |= {**plain, "metadata": {"type": "object"}}
    root["required"] = ["metadata", "spec"]
    return _ordered({**root, "x-kubernetes-validations": [_NAME_RULE]})


def _structural(node: Schema, definitions: Mapping[str, Schema]) -> dict[str, Any]:
    """Return a node without references, nulls, titles and what a structural schema cannot say."""
    node = _resolved(node, definitions)
    result = {key: value for key, value in node.items() if key not in _REPLACED and key not in _DROPPED}
    if "description" in node:
        result["description"] = " ".join(node["description"].split())
    if "properties" in node:
        required = node.get("required", ())
        result["properties"] = {
            name: _structural(child, definitions) if name in required else _optional(child, definitions)
            for name, child in node["properties"].items()
        }
    if "items" in node:
        result["items"] = _structural(node["items"], definitions)
    if node.get("default") not in (None, [], {}):
        result["default"] = node["default"]
    return _ordered({**result, **_additional(node, definitions)})


_FIRST: Final = ("type", "description", "default", "required")
_LAST: Final = ("x-kubernetes-validations", "properties", "items", "additionalProperties")


def _ordered(node: Schema) -> dict[str, Any]:
    """Put first what a reader of the file looks for first."""
    middle = [key for key in node if key not in (*_FIRST, *_LAST)]
    return {key: node[key] for key in (*_FIRST, *middle, *_LAST) if key in node}


_REPLACED: Final = frozenset({"description", "properties", "items", "default", "additionalProperties"})
_DROPPED: Final = frozenset({"title", "$defs"})


def _optional(node: Schema, definitions: Mapping[str, Schema]) -> dict[str, Any]:
    """An object that may be left out is filled in as `{}`, so that the defaults inside it apply."""
    schema = _structural(node, definitions)
    may_be_null = any(choice.get("type") == "null" for choice in node.get("anyOf", ()))
    if not may_be_null and schema.get("properties") and not schema.get("required"):
        schema["default"] = {}
    return _ordered(schema)


def _resolved(node: Schema, definitions: Mapping[str, Schema]) -> Schema:
    if "$ref" in node:
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return {**_resolved(definitions[node["$ref"].rpartition("/")[2]], definitions), **beside}
    choices = [choice for choice in node.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1:
        beside = {key: value for key, value in node.items() if key != "anyOf"}
        return {**_resolved(choices[0], definitions), **beside}
    return node


def _additional(node: Schema, definitions: Mapping[str, Schema]) -> dict[str, Any]:
    additional = node.get("additionalProperties", False)
    if additional is False:
        return {}
    if additional is True:
        return {"x-kubernetes-preserve-unknown-fields": True}
    return {"additionalProperties": _structural(additional, definitions)}


class _PlainDumper(yaml.SafeDumper):
    """Writes every value out: anchors and aliases make a CRD hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        """Whether `data` is written out again where it occurs again: always."""
        return True


def crd_yaml() -> str:
    """Return the CRD file, the same for the same types."""
    definition = custom_resource_definition()
    return _HEADER + yaml.dump(definition, Dumper=_PlainDumper, sort_keys=False, width=110)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the CRD file, or compare one with it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m mmdisagg_operator.api.crd", description="Generate the CustomResourceDefinition."
    )
    parser.add_argument("--write", type=Path, metavar="DIR", help="write the file in DIR")
    parser.add_argument("--check", type=Path, metavar="DIR", help="compare the file in DIR")
    options = parser.parse_args(arguments)
    if options.check is not None:
        return _check(options.check / FILE_NAME)
    if options.write is not None:
        (options.write / FILE_NAME).write_text(crd_yaml())
        return 0
    sys.stdout.write(crd_yaml())
    return 0


def _check(file: Path) -> int:
    found = file.read_text() if file.exists() else ""
    wanted = crd_yaml()
    diff = difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), str(file), "generated")
    sys.stderr.writelines(diff)
    return int(found != wanted)


if __name__ == "__main__":
    sys.exit(main())
