"""Workflow files are read as GitHub reads them: known keys, pinned actions, targets and files that exist.

That they run is another matter: each file says in its head what has not been run.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from itertools import dropwhile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / ".github/workflows").glob("*.y*ml"))

WORKFLOW = {"name", "on", "permissions", "concurrency", "defaults", "env", "jobs"}
JOB = {
    "name",
    "needs",
    "if",
    "runs-on",
    "container",
    "timeout-minutes",
    "env",
    "strategy",
    "steps",
    "permissions",
}
STEP = {"name", "id", "if", "uses", "with", "run", "env", "shell", "working-directory", "continue-on-error"}
EVENTS = {"pull_request", "push", "workflow_dispatch", "schedule"}
PINNED = re.compile(r"^[\w.-]+/[\w./-]+@v\d+\.\d+\.\d+$")
# Kept out of scripts: whoever opens a pull request chooses them.
FOREIGN = re.compile(r"\$\{\{[^}]*(github\.event|github\.head_ref)")
CONTEXTS = {"github", "vars", "env", "runner", "matrix", "steps", "hashFiles", "failure", "always", "success"}


class Workflow(yaml.SafeLoader):
    """YAML 1.2: `on` is a word."""


Workflow.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Workflow.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|false)$"), list("tf"))


def read(file):
    return yaml.load(file.read_text(), Loader=Workflow)


def jobs():
    for file in FILES:
        for name, job in read(file)["jobs"].items():
            yield pytest.param(job, id=f"{file.stem}-{name}")


def steps():
    for file in FILES:
        for name, job in read(file)["jobs"].items():
            for number, step in enumerate(job["steps"], start=1):
                yield pytest.param(step, id=f"{file.stem}-{name}-{number}")


def scripts():
    return [p for p in steps() if "run" in p.values[0]]


def make_targets():
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def words_after(script, command):
    """The words that follow each call of a command, up to the line's end."""
    for line in script.replace("\\\n", " ").splitlines():
        words = list(dropwhile(lambda word: "=" in word, shlex.split(line, comments=True)))
        if words[:1] == [command]:
            yield words[1:]


def test_there_are_three():
    assert [file.stem for file in FILES] == ["ci", "gpu", "kind"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_workflow_has_known_keys_and_few_rights(file):
    workflow = read(file)
    assert workflow.keys() <= WORKFLOW
    assert set(workflow["on"]) <= EVENTS
    assert workflow["permissions"] == {"contents": "read"}
    assert "Not run so far" in file.read_text().partition("\nname:")[0]


@pytest.mark.parametrize("job", list(jobs()))
def test_a_job_has_known_keys_and_an_end(job):
    assert job.keys() <= JOB
    assert {"name", "runs-on", "timeout-minutes", "steps"} <= job.keys()


@pytest.mark.parametrize("step", list(steps()))
def test_a_step_has_known_keys_and_pinned_actions(step):
    assert step.keys() <= STEP
    assert ("uses" in step) != ("run" in step)
    assert PINNED.match(step.get("uses", "a/b@v1.2.3")), step["uses"]


@pytest.mark.parametrize("step", scripts())
def test_a_script_is_bash_and_takes_no_foreign_text(step):
    done = subprocess.run(["bash", "-n"], input=step["run"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not FOREIGN.search(step["run"])


@pytest.mark.parametrize("step", scripts())
def test_a_script_names_targets_and_files_that_exist(step):
    for words in words_after(step["run"], "make"):
        assert set(words) <= make_targets(), f"not in the Makefile: {set(words) - make_targets()}"
    for name in re.findall(r"(?<![\w./-])(?:e2e|images|tools|charts)/[\w./-]+", step["run"]):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("step", list(steps()))
def test_files_that_actions_are_given_exist(step):
    given = step.get("with", {})
    for key in ("config", "go-version-file"):
        if key in given:
            assert (ROOT / given[key]).exists()
    for pattern in re.findall(r"'([\w./*-]+)'", re.sub(r".*hashFiles", "hashFiles", given.get("key", ""))):
        assert list(ROOT.glob(pattern)), pattern


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_expressions_use_known_contexts(file):
    for expression in re.findall(r"\$\{\{(.*?)\}\}", file.read_text()):
        without_texts = re.sub(r"'[^']*'", "", expression)
        assert set(re.findall(r"(?<![\w.])[A-Za-z]\w*", without_texts)) <= CONTEXTS, expression


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_paths_that_trigger_exist(file):
    events = read(file)["on"]
    for event in (events.get("pull_request"), events.get("push")):
        for pattern in (event or {}).get("paths", []):
            assert list(ROOT.glob(pattern)), pattern


def test_the_kind_clusters_configuration_mounts_folders_of_this_repository():
    cluster = yaml.safe_load((ROOT / "e2e/kind/cluster.yaml").read_text())
    assert (cluster["kind"], cluster["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    mounts = {m["hostPath"] for node in cluster["nodes"] for m in node.get("extraMounts", [])}
    assert mounts == {"./models", "./.venv", "./build/embeddings"}
