"""Writes what the charts hold of the CRD.

    python tools/charts.py --write    # after the CRD has changed
    python tools/charts.py --check    # exit 1 with a diff when a file is out of date

The operator's chart holds the CRD itself. The values of the other chart are the fields of the resource's
spec, so their schema is the CRD's: closed, and with nothing required, since a preset may have it.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
CRD: Final = ROOT / "crds/mmdisagg.io_multimodaldisaggdeployments.yaml"
CRD_COPY: Final = ROOT / "charts/mmdisagg-operator/files" / CRD.name
CHART: Final = ROOT / "charts/mmdisagg"
VALUES_SCHEMA: Final = CHART / "values.schema.json"
TOPOLOGIES: Final = ("E/P/D", "E/PD", "EP/D", "PD")

Schema = Mapping[str, Any]

_TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_KEPT: Final = frozenset(
    {"type", "description", "enum", "pattern", "anyOf"}
    | {f"{bound}{what}" for bound in ("min", "max") for what in ("imum", "Length", "Items", "Properties")}
)


def generated() -> Iterator[tuple[Path, str]]:
    """Yield each generated file and what it must hold."""
    definition = CRD.read_text()
    yield CRD_COPY, definition
    presets = sorted(file.stem for file in (CHART / "presets").glob("*.yaml"))
    schema = values_schema(yaml.safe_load(definition), presets)
    yield VALUES_SCHEMA, json.dumps(schema, indent=2) + "\n"


def values_schema(definition: Mapping[str, Any], presets: Sequence[str]) -> dict[str, Any]:
    """Return the schema of the chart's values.

    Args:
        definition: the CRD, with one version.
        presets: names of the chart's presets.
    """
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    own = {
        "global": {"type": "object"},
        "preset": {"enum": ["", *presets], "description": "Values to start from."},
        "fullnameOverride": {"type": "string", "maxLength": 40},
        "labels": _TEXTS,
        "annotations": _TEXTS,
        "topology": {"enum": list(TOPOLOGIES), "description": "Which stages have pods of their own."},
    }
    fields = {name: _closed(field, whole=False) for name, field in spec["properties"].items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mmdisagg",
        "type": "object",
        "additionalProperties": False,
        "properties": {**own, **fields},
    }


def _closed(node: Schema, *, whole: bool) -> dict[str, Any]:
    """Return a node that refuses unknown fields.

    Args:
        node: of the CRD's schema.
        whole: whether it stands in the values with all its fields, as items of lists do.
    """
    result = {key: value for key, value in node.items() if key in _KEPT}
    if "items" in node:
        result["items"] = _closed(node["items"], whole=True)
    if "properties" in node:
        children = node["properties"].items()
        result["properties"] = {name: _closed(child, whole=whole) for name, child in children}
        result["additionalProperties"] = node.get("x-kubernetes-preserve-unknown-fields", False)
    if "additionalProperties" in node:
        result["additionalProperties"] = _closed(node["additionalProperties"], whole=True)
    if whole and "required" in node:
        result["required"] = node["required"]
    return result


def out_of_date() -> Iterator[str]:
    """Yield the lines of a diff between the files and what they must hold."""
    for file, wanted in generated():
        found = file.read_text() if file.exists() else ""
        yield from difflib.unified_diff(
            found.splitlines(True), wanted.splitlines(True), str(file.relative_to(ROOT)), "generated"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or compare them; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python tools/charts.py", description="Generate the charts' files.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write them")
    mode.add_argument("--check", action="store_true", help="exit 1 with a diff when one is out of date")
    if parser.parse_args(arguments).write:
        for file, wanted in generated():
            file.write_text(wanted)
        return 0
    difference = list(out_of_date())
    sys.stderr.writelines(difference)
    return int(bool(difference))


if __name__ == "__main__":
    sys.exit(main())
