import os
import sys

import pytest

import testbed
from testbed import api, packages, probe
from testbed.layout import Layout


def test_another_system_is_told_to_use_kind(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert testbed.capable(Layout(tmp_path)) == (
        "cannot run here: nodes need Linux, and this is darwin; use a kind cluster and its kubeconfig"
    )
    assert "kind" in api.capable(Layout(tmp_path))


def test_nodes_need_root_and_an_api_server_does_not(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(packages, "present", lambda name: True)
    monkeypatch.setattr("testbed.programs.present", lambda name: True)
    assert "need root" in probe.capable(Layout(tmp_path))
    assert api.capable(Layout(tmp_path)) is None


def test_missing_packages_are_named_when_they_cannot_be_installed(monkeypatch):
    monkeypatch.setattr(packages, "present", lambda name: name in ("ip", "openssl"))
    reason = packages.obstacle({"ip": "iproute2", "nft": "nftables", "runc": "runc"})
    assert reason.endswith("no apt-get to install them with: nftables runc")


@pytest.mark.parametrize("present", [True, False])
def test_only_what_is_missing_is_installed(monkeypatch, present):
    monkeypatch.setattr(packages, "present", lambda name: present)
    assert packages.missing({"nft": "nftables"}) == ([] if present else ["nftables"])
