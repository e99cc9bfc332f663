"""What the API server itself lets through, refuses, fills in and shows."""

import pytest
from documents import document, rule_examples
from kube import RESOURCE, until

from mmdisagg_operator.api import Topology, load_deployment

EXAMPLES = list(rule_examples())
STRICT = {"dryRun": "All", "fieldValidation": "Strict"}


def tried(kube, made):
    return kube.request("POST", RESOURCE.path("default"), made, params=STRICT)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.rule)
def test_a_rule_lets_the_right_resource_through(kube, example):
    answer = tried(kube, example.accepted)
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.rule)
def test_a_rule_refuses_the_wrong_resource_and_names_the_field(kube, example):
    answer = tried(kube, example.refused)
    assert answer.status_code == 422, answer.text
    causes = answer.json()["details"]["causes"]
    assert any(cause["field"].startswith(example.path) for cause in causes), causes


@pytest.mark.parametrize("name", ["d", "demo-1", "d" * 40])
def test_a_name_from_which_all_children_can_be_named_is_taken(kube, name):
    made = document()
    made["metadata"]["name"] = name
    answer = tried(kube, made)
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("name", ["1demo", "demo.example", "d" * 41])
def test_a_name_from_which_a_child_could_not_be_named_is_refused(kube, name):
    """Kubernetes itself takes each of them as the name of a resource."""
    made = document()
    made["metadata"]["name"] = name
    answer = tried(kube, made)
    assert answer.status_code == 422
    assert "metadata.name: at most 40 of a-z, 0-9 and '-', a letter first" in answer.text


@pytest.mark.parametrize("topology", Topology)
def test_the_api_server_fills_in_the_defaults_that_the_types_have(kube, topology):
    made = document(topology)
    filled = tried(kube, made).json()
    assert load_deployment(filled).spec == load_deployment(made).spec
    assert filled["spec"]["decode"]["shmSize"] == "8Gi"


TYPO = document(change={"decode": {"replicsa": 2}})


@pytest.mark.case("c13")
def test_kubectl_refuses_an_unknown_field_with_its_path(kube):
    done = kube.kubectl("apply", "-n", "default", "--dry-run=server", "-f", "-", manifest=TYPO)
    assert done.returncode != 0
    assert 'unknown field "spec.decode.replicsa"' in done.stderr


@pytest.mark.case("c13")
def test_a_warning_names_an_unknown_field_where_only_warnings_are_wanted(kube):
    words = ("apply", "-n", "default", "--dry-run=server", "--validate=warn", "-f", "-")
    done = kube.kubectl(*words, manifest=TYPO)
    assert done.returncode == 0, done.stderr
    assert 'unknown field "spec.decode.replicsa"' in done.stderr


def test_the_columns_are_those_that_people_look_for(kube, deployed, operator):
    deployed.wish(document())
    deployed.says("Available", "False", "Starting")
    short = kube.kubectl("get", "mmdd", "-n", deployed.namespace).stdout.splitlines()
    assert short[0].split() == ["NAME", "MODEL", "ENCODE", "PREFILL", "DECODE", "READY", "REASON"]
    assert short[1].split() == ["demo", "model", "0/1", "0/1", "0/1", "False", "Starting"]
    wide = kube.kubectl("get", "mmdd", "-n", deployed.namespace, "-o", "wide").stdout.splitlines()
    assert wide[0].split() == [*short[0].split(), "URL", "AGE"]
    url, age = wide[1].split()[-2:]
    assert url == f"http://demo-router.{deployed.namespace}.svc:8000"
    assert age[0].isdigit()
    described = kube.kubectl("describe", "mmdd", "demo", "-n", deployed.namespace).stdout
    assert "encode: 1 of 1 pods being made" in described


def test_the_status_is_a_subresource_of_its_own(kube, deployed):
    made = document()
    made["status"] = {"url": "http://forged"}
    deployed.wish(made)
    assert "status" not in deployed.resource()
    until("generation", lambda: deployed.resource()["metadata"]["generation"] == 1)
