"""Which engine gets the next leg."""

from __future__ import annotations

from mmdisagg_workers.contract import Role
from mmdisagg_workers.router.endpoints import COOLDOWN_SECONDS, Endpoint, Pool


def pool(*urls: str) -> Pool:
    return Pool([Endpoint(Role.DECODE, url) for url in urls])


def test_engines_take_turns():
    two = pool("http://a", "http://b")

    assert {two.choose(0).url, two.choose(0).url} == {"http://a", "http://b"}


def test_the_least_busy_engine_is_chosen():
    two = pool("http://a", "http://b")
    with two.endpoints[0].busy():
        assert [two.choose(0).url for _ in range(3)] == ["http://b"] * 3
    assert two.endpoints[0].in_flight == 0


def test_an_engine_that_just_failed_is_passed_over_for_a_while():
    two = pool("http://a", "http://b")
    two.endpoints[0].failed(now=100.0)

    with two.endpoints[1].busy():
        assert two.choose(100.0).url == "http://b"
        assert two.choose(100.0 + COOLDOWN_SECONDS).url == "http://a"


def test_an_engine_that_was_tried_is_chosen_only_when_there_is_no_other():
    two = pool("http://a", "http://b")
    first, second = two.endpoints
    first.failed(now=0.0)

    assert two.choose(0.0, {second}) is first
    assert two.choose(0.0, {first, second}) is second


def test_no_engine():
    assert pool().choose(0) is None
