"""Charts as tests see them: values in, Kubernetes objects or a refusal out."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Helm:
    """Helm, with folders of its own."""

    program: str
    environment: Mapping[str, str]

    def run(
        self, *words: object, values: Mapping[str, Any] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command; `values` are a values file."""
        given = () if values is None else ("--values=-",)
        command = [self.program, *map(str, words), *given]
        text = None if values is None else yaml.safe_dump(values)
        return subprocess.run(
            command, input=text, env=dict(self.environment), capture_output=True, text=True, check=False
        )

    def must(self, *words: object, values: Mapping[str, Any] | None = None) -> str:
        """Run a command that must succeed; returns what it printed."""
        done = self.run(*words, values=values)
        assert done.returncode == 0, done.stderr
        return done.stdout


class Objects(list[Manifest]):
    """What a chart renders."""

    def one(self, kind: str, suffix: str = "") -> Manifest:
        """The only object of a kind whose name ends with `suffix`."""
        (found,) = (o for o in self if o["kind"] == kind and o["metadata"]["name"].endswith(suffix))
        return found

    def kinds(self) -> set[str]:
        return {o["kind"] for o in self}


@dataclass(frozen=True)
class Chart:
    """A chart of this repository."""

    helm: Helm
    folder: Path

    def render(
        self, values: Mapping[str, Any] | None = None, *words: object, release: str = "demo"
    ) -> Objects:
        output = self.helm.must(
            "template", release, self.folder, "--namespace=sys", *words, values=values or {}
        )
        return Objects(document for document in yaml.safe_load_all(output) if document)

    def refusal(self, values: Mapping[str, Any], release: str = "demo") -> str:
        """The message with which values are refused."""
        done = self.helm.run("template", release, self.folder, values=values)
        assert done.returncode != 0, "the chart takes these values"
        return done.stderr

    def notes(self, values: Mapping[str, Any] | None = None) -> str:
        words = ("install", "demo", self.folder, "--namespace=sys", "--dry-run=client")
        return self.helm.must(*words, values=values or {}).partition("NOTES:")[2]


def nested(path: str, value: object) -> dict[str, Any]:
    """The values that have `value` at a dotted path."""
    result: Any = value
    for part in reversed(path.split(".")):
        result = {part: result}
    return dict(result)


def contains(whole: object, part: object) -> bool:
    """Whether `part` is in `whole`: objects may have more fields, lists more items."""
    if isinstance(part, Mapping) and isinstance(whole, Mapping):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return all(any(contains(item, wanted) for item in whole) for wanted in part)
    return whole == part


def verbs(rules: Iterable[Mapping[str, Any]], group: str, resource: str) -> set[str]:
    """The verbs that rules allow on a resource without naming objects."""
    return {
        verb
        for rule in rules
        if group in rule["apiGroups"] and resource in rule["resources"] and "resourceNames" not in rule
        for verb in rule["verbs"]
    }
