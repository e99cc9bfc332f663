"""Drift is what applying would change, and nothing else."""

from copy import deepcopy

import pytest
from emulator import fields_v1, leaves
from hypothesis import given
from hypothesis import strategies as st

from mmdisagg_operator.drift import drifted, owned_fields, owns

WANTED = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "x", "namespace": "ns", "labels": {"a": "1"}},
    "spec": {
        "replicas": 2,
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "engine",
                        "args": ["--a", "--b"],
                        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": ""}],
                        "resources": {"limits": {"memory": "1024Mi", "cpu": "1000m"}},
                        "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
                    }
                ],
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "volumes": [{"name": "cache", "emptyDir": {}}],
            }
        },
    },
}


def live(wanted=WANTED, owned=None):
    """The object right after `wanted` was applied, with what the API server adds."""
    stored = deepcopy(wanted)
    applied = {name: value for name, value in (owned or wanted).items() if name not in ("apiVersion", "kind")}
    metadata = {n: v for n, v in applied["metadata"].items() if n not in ("name", "namespace")}
    fields = fields_v1(set(leaves({**applied, "metadata": metadata})))
    stored["metadata"]["managedFields"] = [
        {"manager": "other", "operation": "Update", "fieldsV1": {"f:status": {}}},
        {"manager": "me", "operation": "Apply", "fieldsV1": fields},
    ]
    stored["spec"]["revisionHistoryLimit"] = 10
    container(stored)["terminationMessagePath"] = "/dev/termination-log"
    return stored


def container(manifest):
    return manifest["spec"]["template"]["spec"]["containers"][0]


def changed(path, value):
    wanted = deepcopy(WANTED)
    node = wanted
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    return wanted


IN_CONTAINER = ("spec", "template", "spec", "containers", 0)


def test_what_was_just_applied_has_not_drifted():
    assert not drifted(WANTED, live(), "me")


def test_what_was_never_applied_by_us_has():
    assert drifted(WANTED, live(), "somebody")
    assert drifted(WANTED, {"metadata": {}}, "me")


@pytest.mark.parametrize(
    "wanted",
    [
        changed(("spec", "replicas"), 3),
        changed(("metadata", "labels", "b"), "2"),
        changed((*IN_CONTAINER, "args"), ["--b", "--a"]),
        changed((*IN_CONTAINER, "args"), ["--a"]),
        changed((*IN_CONTAINER, "env"), [{"name": "A", "value": "2"}, {"name": "B", "value": ""}]),
        changed((*IN_CONTAINER, "env"), [{"name": "A", "value": "1"}]),
        changed((*IN_CONTAINER, "env"), [{"name": "B", "value": ""}, {"name": "A", "value": "1"}]),
        changed((*IN_CONTAINER, "image"), "new"),
        changed((*IN_CONTAINER, "resources", "limits", "memory"), "2Gi"),
        changed((*IN_CONTAINER, "name"), "other"),
        changed(("spec", "template", "spec", "tolerations"), []),
        changed(("spec", "template", "spec", "tolerations"), [{"key": "gpu", "operator": "Equal"}]),
        changed(
            ("spec", "template", "spec", "volumes"), [{"name": "cache", "emptyDir": {"medium": "Memory"}}]
        ),
    ],
)
def test_a_new_wish_is_drift(wanted):
    assert drifted(wanted, live(), "me")


def test_a_wish_that_is_given_up_is_drift():
    wanted = deepcopy(WANTED)
    del wanted["spec"]["replicas"]
    assert drifted(wanted, live(), "me")


def test_a_field_that_somebody_took_over_is_drift():
    remaining = deepcopy(WANTED)
    del remaining["spec"]["replicas"]
    assert drifted(WANTED, live(owned=remaining), "me")


def test_a_value_that_is_not_ours_to_decide_is_no_drift():
    stored = live()
    stored["spec"]["minReadySeconds"] = 5
    stored["metadata"]["labels"]["theirs"] = "x"
    assert not drifted(WANTED, stored, "me")


def test_another_spelling_is_no_drift():
    stored = live()
    container(stored)["resources"]["limits"] = {"memory": "1Gi", "cpu": "1"}
    del container(stored)["env"][1]["value"]
    stored["spec"]["template"]["spec"]["tolerations"][0]["effect"] = "defaulted"
    assert not drifted(WANTED, stored, "me")


@pytest.mark.parametrize(
    ("ours", "theirs"), [("0.0001", "100u"), ("0.0000001", "100n"), ("0.1Ki", "102400m")]
)
def test_a_tiny_quantity_is_known_in_its_normal_form(ours, theirs):
    wanted = changed((*IN_CONTAINER, "resources", "limits", "cpu"), ours)
    stored = live(wanted)
    container(stored)["resources"]["limits"]["cpu"] = theirs
    assert not drifted(wanted, stored, "me")


def test_items_of_others_may_stand_between_ours():
    stored = live()
    container(stored)["env"].insert(1, {"name": "THEIRS", "value": "x"})
    assert not drifted(WANTED, stored, "me")


def test_a_quantitys_spelling_matters_elsewhere():
    stored = live()
    container(stored)["env"][0]["value"] = "1000m"
    assert drifted(WANTED, stored, "me")


def test_an_item_that_is_gone_is_drift():
    stored = live()
    container(stored)["env"].pop(0)
    assert drifted(WANTED, stored, "me")


def test_a_status_is_compared_with_what_was_applied_to_the_status():
    wanted = {
        "metadata": {"name": "x"},
        "status": {"conditions": [{"type": "A", "status": "True"}], "url": ""},
    }
    stored = {**wanted, "metadata": {"name": "x"}}
    fields = fields_v1(set(leaves({"status": wanted["status"]})))
    entry = {"manager": "me", "operation": "Apply", "subresource": "status", "fieldsV1": fields}
    stored["metadata"]["managedFields"] = [entry]
    assert not drifted(wanted, stored, "me", "status")
    assert drifted(wanted, stored, "me")


def test_ownership_of_one_field_can_be_asked_for():
    assert owns(live(), "me", "spec", "replicas")
    assert not owns(live(), "me", "spec", "paused")
    assert not owns(live(), "other", "spec", "replicas")
    assert owned_fields(live(), "nobody") is None


scalars = st.one_of(st.integers(1, 9), st.sampled_from(["a", "1Gi", "x=y"]))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
        st.lists(scalars, min_size=1, max_size=3),
    ),
    max_leaves=8,
)


@given(values, values)
def test_the_same_wish_never_drifts_and_another_always_does(one, other):
    first, second = ({**WANTED, "spec": {**WANTED["spec"], "extra": value}} for value in (one, other))
    assert not drifted(first, live(first), "me")
    assert drifted(second, live(first), "me") == (one != other)
