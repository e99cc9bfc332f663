"""From EndpointSlices to addresses."""

from __future__ import annotations

import json

import pytest
from fake_api_server import endpoint, manifest

from mmdisagg_workers.contract import Role
from mmdisagg_workers.router.endpoints import Address
from mmdisagg_workers.router.slices import discovered, read_list, read_slice, selector


def found(*manifests):
    return discovered([read_slice(json.dumps(one).encode()) for one in manifests])


def urls(*manifests):
    return sorted(address.url for address in found(*manifests).engines)


def test_an_engine_is_known_by_role_url_revision_and_pod():
    one = manifest("demo-decode-r1-a", "decode", "r1", endpoint("10.0.0.7", "pod-7"))

    assert found(one).engines == {Address(Role.DECODE, "http://10.0.0.7:8000", "r1", "pod-7")}


def test_the_port_is_the_slices_own():
    assert urls(manifest("a", "encode", "r1", endpoint("10.0.0.7"), port=8123)) == ["http://10.0.0.7:8123"]


def test_an_ipv6_address_stands_in_brackets():
    one = manifest("a", "encode", "r1", endpoint("fd00::7"), kind="IPv6")

    assert urls(one) == ["http://[fd00::7]:8000"]


@pytest.mark.parametrize(
    ("conditions", "usable"),
    [
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": True}, True),
        ({"serving": True}, True),
        ({"ready": False, "serving": False, "terminating": False}, False),
        ({"ready": False}, False),
        ({"ready": True, "serving": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        # publishNotReadyAddresses makes even these ready.
        ({"ready": True, "serving": True, "terminating": True}, False),
    ],
)
def test_only_what_is_ready_and_stays_takes_new_legs(conditions, usable):
    one = manifest("a", "decode", "r1", endpoint("10.0.0.7", **conditions), endpoint("10.0.0.8"))

    assert ("http://10.0.0.7:8000" in urls(one)) is usable
    assert "http://10.0.0.8:8000" in urls(one)


def test_absent_conditions_count_as_good():
    assert urls(manifest("a", "decode", "r1", {"addresses": ["10.0.0.7"]})) == ["http://10.0.0.7:8000"]


def test_an_engine_in_two_slices_is_one():
    slices = [manifest(name, "decode", "r1", endpoint("10.0.0.7", "pod")) for name in "ab"]

    assert len(found(*slices).engines) == 1


def test_an_engine_that_leaves_by_one_of_two_slices_leaves():
    stale = manifest("a", "decode", "r1", endpoint("10.0.0.7", "pod"))
    fresh = manifest("b", "decode", "r1", endpoint("10.0.0.7", "pod", ready=False, terminating=True))

    assert urls(stale, fresh) == urls(fresh, stale) == []


def test_a_pod_with_two_addresses_is_one_engine():
    slices = [
        manifest("b", "decode", "r1", endpoint("fd00::7", "pod"), kind="IPv6"),
        manifest("c", "decode", "r1", endpoint("10.0.0.7", "pod")),
    ]

    assert urls(*slices) == urls(*reversed(slices)) == ["http://10.0.0.7:8000"]


def test_revisions_stand_in_the_order_in_which_they_were_made():
    slices = [
        manifest("a", "decode", "new", made="2026-01-03T00:00:00Z"),
        manifest("b", "decode", "old", made="2026-01-01T00:00:00Z"),
        manifest("c", "encode", "old", made="2026-01-04T00:00:00Z"),
    ]

    assert found(*slices).revisions == ("old", "new")


@pytest.mark.parametrize(
    "one",
    [
        manifest("a", "router", "r1", endpoint("10.0.0.7")),
        manifest("a", None, "r1", endpoint("10.0.0.7")),
        manifest("a", "decode", "r1"),
        manifest("a", "decode", "r1", {"addresses": []}),
        manifest("a", "decode", "r1", endpoint("10.0.0.7"), port=None),
        manifest("a", "decode", "r1", endpoint("engine.example.com"), kind="FQDN"),
    ],
)
def test_what_is_no_engine_is_passed_over(one):
    assert urls(one) == []


def test_the_selector_takes_slices_of_one_deployment_that_have_a_revision():
    assert selector("demo") == "mmdisagg.io/deployment=demo,mmdisagg.io/revision"


def test_a_list_may_be_empty():
    listed = read_list(b'{"kind":"EndpointSliceList","metadata":{"resourceVersion":"7"},"items":[]}')

    assert (listed.metadata.resource_version, listed.items) == ("7", [])
