"""Names, roles and limits that router and workers share."""

from __future__ import annotations

import base64
import json

import pytest

from mmdisagg_workers.contract import (
    LEG_BYTES,
    PART_BYTES,
    STAGES,
    TEXT_BYTES,
    ContractError,
    MediaLimits,
    Role,
    Topology,
    topology_of,
)


@pytest.mark.parametrize("topology", Topology)
def test_a_topology_is_told_by_its_roles(topology):
    assert topology_of(topology.roles) is topology
    assert topology_of(set(topology.roles)) is topology


@pytest.mark.parametrize(
    "roles", [(), (Role.ENCODE,), (Role.PREFILL,), (Role.ENCODE, Role.PREFILL), (Role.AGGREGATED,)]
)
def test_without_decode_there_is_no_topology(roles):
    with pytest.raises(ValueError, match="decode is needed"):
        topology_of(roles)


def test_stages_are_what_the_largest_topology_has():
    assert Topology.E_P_D.roles == STAGES


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000, 1001])
@pytest.mark.parametrize(("images", "videos"), [(0, 0), (1, 0), (3, 2)])
def test_the_largest_chat_that_keeps_the_limits_fits(size, images, videos):
    limits = MediaLimits(images=images, videos=videos, bytes=size)
    inline = base64.b64encode(b"\xff" * size).decode()
    parts = [
        {"type": f"{kind}_url", f"{kind}_url": {"url": f"data:{kind}/x-a-long-subtype;base64,{inline}"}}
        for kind, count in (("image", images), ("video", videos))
        for _ in range(count)
    ]
    text = {"role": "user", "content": ""}
    chat = {"model": "m", "messages": [{"role": "user", "content": parts}, text]}
    inline_bytes = (images + videos) * len(inline)
    text["content"] = "x" * (TEXT_BYTES - (len(json.dumps(chat)) - inline_bytes))

    # Here the parts' own JSON counts as text, so that nothing is left over.
    assert len(json.dumps(chat)) == limits.body_bytes - (images + videos) * PART_BYTES


def test_a_legs_room_is_that_of_the_body_and_of_what_the_router_adds():
    limits = MediaLimits(images=2, videos=0, bytes=3000)

    assert limits.leg_bytes(raw=True) == limits.body_bytes + LEG_BYTES
    assert limits.leg_bytes(raw=False) == TEXT_BYTES + LEG_BYTES


def test_the_expanded_prompt_of_a_million_tokens_fits_a_leg():
    longest = json.dumps([151_655] * 1_000_000, separators=(",", ":"))

    assert len(longest) < MediaLimits().leg_bytes(raw=False)


@pytest.mark.parametrize("name", ["images", "videos", "bytes", "pixels"])
@pytest.mark.parametrize("value", [-1, True, 1.0, "8", None])
def test_a_limit_is_a_natural_number(name, value):
    with pytest.raises(ContractError, match=rf"limits\.{name}"):
        MediaLimits(**{name: value})
