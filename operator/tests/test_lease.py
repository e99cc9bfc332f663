"""One holder at a time, by a clock that tests move."""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import pytest
from emulator import ApiServer, refusal, serving

from mmdisagg_operator.kinds import LEASE
from mmdisagg_operator.lease import DEADLINE_SECONDS, DURATION_SECONDS, Lease, Term

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def lease(cluster, identity, clock, retry=0.01):
    seconds = itertools.count()
    return Lease(
        cluster, "ops", "mmdisagg", identity, clock, lambda: NOON + timedelta(seconds=next(seconds)), retry
    )


def holder(api):
    found = api.find(LEASE, "mmdisagg", "ops")
    return found["spec"]["holderIdentity"] if found else None


async def renewed(api):
    def version():
        return api.find(LEASE, "mmdisagg", "ops")["metadata"]["resourceVersion"]

    before = version()
    await soon(lambda: version() != before)


async def soon(condition, limit=2.0):
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("holder", "age", "free"),
    [("", 0, True), ("me", 100, True), ("other", 14, False), ("other", 16, True)],
)
def test_who_may_take_it(holder, age, free):
    assert Term(holder, "1", 0.0, 15.0).free_for("me", age) is free


async def test_the_first_one_gets_it_and_gives_it_back():
    api = ApiServer()
    async with serving(api) as (cluster, _):
        mine = lease(cluster, "one", Clock())
        await mine.acquire()
        assert holder(api) == "one"
        await mine.release()
        assert holder(api) == ""
        other = lease(cluster, "two", Clock())
        await other.acquire()
        assert api.find(LEASE, "mmdisagg", "ops")["spec"]["leaseTransitions"] == 1


async def test_another_waits_until_the_holder_is_silent_for_long_enough():
    api, clock = ApiServer(), Clock()
    async with serving(api) as (cluster, _):
        await lease(cluster, "one", clock).acquire()
        other = lease(cluster, "two", clock)
        waiting = asyncio.create_task(other.acquire())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        clock.now += DURATION_SECONDS + 1
        await asyncio.wait_for(waiting, 2)
        assert holder(api) == "two"


async def test_a_holder_that_renews_keeps_it():
    api, clock = ApiServer(), Clock()
    async with serving(api) as (cluster, _):
        mine = lease(cluster, "one", clock)
        await mine.acquire()
        keeping = asyncio.create_task(mine.keep())
        other = asyncio.create_task(lease(cluster, "two", clock).acquire())
        for _ in range(8):
            await renewed(api)
            clock.now += 5
        assert holder(api) == "one"
        assert not keeping.done()
        for task in (keeping, other):
            task.cancel()
        await asyncio.gather(keeping, other, return_exceptions=True)


async def test_a_holder_that_cannot_renew_gives_up_before_another_may_begin():
    api, clock = ApiServer(), Clock()
    async with serving(api) as (cluster, _):
        mine = lease(cluster, "one", clock)
        await mine.acquire()
        api.fault = lambda *_: refusal(500, "InternalError", "down")
        keeping = asyncio.create_task(mine.keep())
        await asyncio.sleep(0.05)
        assert not keeping.done()
        clock.now += DEADLINE_SECONDS
        await asyncio.wait_for(keeping, 2)
        assert DEADLINE_SECONDS < DURATION_SECONDS


async def test_a_connection_that_breaks_now_and_then_costs_nothing():
    api, clock, tries = ApiServer(), Clock(), []

    def now_and_then(method, path):
        tries.append(path)
        return None if len(tries) % 3 else refusal(503, "ServiceUnavailable", "try again")

    async with serving(api) as (cluster, _):
        mine = lease(cluster, "one", clock)
        api.fault = now_and_then
        await mine.acquire()
        keeping = asyncio.create_task(mine.keep())
        await soon(lambda: len(tries) > 20)
        assert not keeping.done()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def test_a_holder_notices_that_another_has_it():
    api, clock = ApiServer(), Clock()
    async with serving(api) as (cluster, _):
        mine = lease(cluster, "one", clock)
        await mine.acquire()

        def stolen(live):
            live["spec"]["holderIdentity"] = "two"

        live = api.objects[LEASE, "ops", "mmdisagg"]
        stolen(live)
        api._tell("MODIFIED", LEASE, live)
        await asyncio.wait_for(mine.keep(), 2)


async def test_giving_back_what_another_has_or_nobody_answers_is_no_error():
    api, clock = ApiServer(), Clock()
    async with serving(api) as (cluster, _):
        await lease(cluster, "one", clock).acquire()
        await lease(cluster, "two", clock).release()
        assert holder(api) == "one"
        api.fault = lambda *_: refusal(500, "InternalError", "down")
        await lease(cluster, "one", clock).release()
