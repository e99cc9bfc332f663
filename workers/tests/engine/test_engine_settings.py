"""Settings from the environment: what is accepted, and what each mistake is told."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdisagg_operator.plan import environment
from mmdisagg_workers.contract import Geometry, Placeholder, Role, Topology
from mmdisagg_workers.engine import settings as names
from mmdisagg_workers.engine.settings import (
    MediaPolicy,
    WorkerSettings,
    geometry_from_json,
    geometry_to_json,
)
from mmdisagg_workers.engine.start_errors import BadSettings

TOKEN = "0123456789abcdef0123456789abcdef"
MINIMAL = {names.ROLE: "prefill", names.TOPOLOGY: "E/P/D", names.STAGE_TOKEN: TOKEN}


def test_minimal_environment_takes_the_defaults():
    settings = WorkerSettings.from_environ(MINIMAL)
    assert (settings.role, settings.topology) == (Role.PREFILL, Topology.E_P_D)
    assert (settings.family, settings.revision, settings.launcher) == ("Auto", "", None)
    assert settings.media == MediaPolicy(images=8, videos=1, bytes=20 * 2**20, pixels=40_000_000)


def test_everything_is_read():
    media = {"allowedHosts": ["IMG.example.com."], "allowPrivateNetworks": True, "limits": {"images": 2}}
    environ = MINIMAL | {names.FAMILY: "LLaVA", names.REVISION: "r1", names.MEDIA: json.dumps(media)}
    settings = WorkerSettings.from_environ(environ | {names.DIE_WITH_PARENT: "17"})
    assert settings.media.allowed_hosts == ("img.example.com",)
    assert settings.media.allow_private_networks
    assert settings.media.images == 2
    assert (settings.family, settings.revision, settings.launcher) == ("LLaVA", "r1", 17)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({names.ROLE: "router"}, names.ROLE),
        ({names.TOPOLOGY: ""}, names.TOPOLOGY),
        ({names.TOPOLOGY: "E/PD"}, "has no role prefill"),
        ({names.STAGE_TOKEN: ""}, names.STAGE_TOKEN),
        ({names.STAGE_TOKEN: "short"}, names.STAGE_TOKEN),
        ({names.STAGE_TOKEN: "ü" * 40}, names.STAGE_TOKEN),
        ({names.MEDIA: "["}, names.MEDIA),
        ({names.MEDIA: "[]"}, names.MEDIA),
        ({names.MEDIA: '{"hosts":[]}'}, "hosts"),
        ({names.MEDIA: '{"limits":{"megabytes":1}}'}, "megabytes"),
        ({names.MEDIA: '{"limits":[]}'}, names.MEDIA),
        ({names.MEDIA: '{"limits":{"images":true}}'}, "limits.images"),
        ({names.MEDIA: '{"limits":{"images":-1}}'}, "limits.images"),
        ({names.MEDIA: '{"allowedHosts":"a"}'}, "allowedHosts"),
        ({names.MEDIA: '{"allowPrivateNetworks":1}'}, "allowPrivateNetworks"),
        ({names.GEOMETRY: "{}"}, names.GEOMETRY),
        ({names.DIE_WITH_PARENT: "yes"}, names.DIE_WITH_PARENT),
    ],
)
def test_a_mistake_is_named(changed, named):
    with pytest.raises(BadSettings, match=named):
        WorkerSettings.from_environ(MINIMAL | changed)


def test_only_an_aggregated_worker_may_stand_without_token_and_topology():
    settings = WorkerSettings.from_environ({names.ROLE: "aggregated"})
    assert (settings.stage_token, settings.topology) == (None, Topology.PD)


@given(st.dictionaries(st.sampled_from(sorted(MINIMAL)), st.text()), st.text())
def test_no_environment_raises_anything_else(changed, media):
    try:
        WorkerSettings.from_environ(MINIMAL | changed | {names.MEDIA: media})
    except BadSettings as error:
        assert "MMDISAGG_" in str(error)


def test_geometry_survives_the_environment():
    geometry = Geometry(512, 2, {"image": Placeholder(12, "<|image_pad|>")})
    assert geometry_from_json(geometry_to_json(geometry)) == geometry


@pytest.mark.parametrize("name", ["STAGE_TOKEN", "TOPOLOGY", "FAMILY", "REVISION", "MEDIA"])
def test_the_plan_sets_the_variables_that_the_worker_reads(name):
    assert getattr(names, name) == getattr(environment, name)
