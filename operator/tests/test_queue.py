"""The schedule by its own clock, and the workers by the event loop's."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdisagg_operator.queue import SETTLE_SECONDS, Pace, Result, Schedule, WorkQueue

PACE = Pace(resync=100.0, first_retry=1.0, last_retry=30.0)


def schedule(*keys, now=0.0):
    made = Schedule(PACE)
    for key in keys:
        made.add(key, now)
    return made


def test_news_settle_before_they_are_worked_on():
    made = schedule("a")
    assert made.take(SETTLE_SECONDS / 2) is None
    assert made.take(SETTLE_SECONDS) == "a"


def test_news_about_one_key_are_merged():
    made = schedule("a", "a", "a")
    assert (made.take(1.0), made.take(1.0)) == ("a", None)


def test_who_waited_longest_comes_first():
    made = schedule("a")
    made.add("b", 0.05)
    assert (made.take(1.0), made.take(1.0)) == ("a", "b")


def test_later_news_do_not_push_a_key_back():
    made = schedule("a")
    made.add("a", 0.09)
    assert made.take(0.1) == "a"


def test_a_key_is_worked_on_by_one_at_a_time_and_again_after_news():
    made = schedule("a")
    assert made.take(1.0) == "a"
    made.add("a", 1.0)
    assert made.take(50.0) is None
    made.done("a", 50.0)
    assert made.take(50.0 + SETTLE_SECONDS) == "a"
    made.done("a", 51.0)
    assert made.take(52.0) is None


def test_a_key_comes_back_after_the_resync_period_or_as_told():
    made = schedule("a")
    made.take(1.0)
    made.done("a", 1.0)
    assert made.next_due() == 101.0
    assert made.take(101.0) == "a"
    made.done("a", 101.0, after=5.0)
    assert made.next_due() == 106.0


def test_pauses_grow_and_end_with_a_success():
    made, now, pauses = schedule("a"), 1.0, []
    for _ in range(7):
        assert made.take(now) == "a"
        pauses.append(made.failed("a", now))
        now += pauses[-1]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    made.take(now)
    made.done("a", now)
    made.take(now + 100)
    assert made.failed("a", now + 100) == 1.0


def test_news_from_children_do_not_hurry_a_key_that_fails():
    made = schedule("a")
    made.take(1.0)
    made.failed("a", 1.0)
    made.take(2.0)
    made.add("a", 2.0)
    made.failed("a", 2.0)
    made.add("a", 2.5)
    assert made.take(3.9) is None
    assert made.take(4.0) == "a"


def test_news_about_the_resource_itself_do():
    made = schedule("a")
    for _ in range(5):
        made.take(100.0)
        made.failed("a", 0.0)
    made.add("a", 200.0, urgent=True)
    assert made.take(200.0 + SETTLE_SECONDS) == "a"
    assert made.failed("a", 201.0) == 1.0


def test_what_is_gone_is_forgotten_unless_it_has_come_back():
    made = schedule("a", "b")
    made.take(1.0)
    made.take(1.0)
    made.add("b", 1.0)
    made.forget("a", 2.0)
    made.forget("b", 2.0)
    assert ("a" in made, "b" in made, len(made)) == (False, True, 1)
    assert made.take(3.0) == "b"


def test_what_waits_can_be_counted():
    made = schedule("a", "b")
    assert made.waiting(0.0) == 0
    assert made.waiting(1.0) == 2
    made.take(1.0)
    assert made.waiting(1.0) == 1
    assert Schedule(PACE).next_due() is None


steps = st.lists(st.tuples(st.sampled_from(["add", "take", "done", "failed", "forget"]), st.integers(0, 2)))


@given(steps)
def test_no_order_of_calls_loses_news_or_works_twice(calls):
    made, busy, now = Schedule(PACE), set(), 0.0
    for call, key in calls:
        now += 1.0
        if call == "add":
            made.add(key, now)
        elif call == "take":
            taken = made.take(now)
            assert taken is None or taken not in busy
            busy |= {taken} - {None}
        elif key in busy:
            busy.discard(key)
            made.forget(key, now) if call == "forget" else getattr(made, call)(key, now)
    made.add(9, now)
    left = set()
    while (key := made.take(now + 1000.0)) is not None:
        left.add(key)
    assert 9 in left
    assert left | busy == set(made._entries)


async def drained(queue, done, limit=5.0):
    task = asyncio.create_task(queue.run())
    try:
        async with asyncio.timeout(limit):
            await done.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_workers_work_side_by_side_but_never_on_one_key():
    running, most, seen, done = set(), 0, [], asyncio.Event()

    async def work(key):
        nonlocal most
        assert key not in running
        running.add(key)
        most = max(most, len(running))
        await asyncio.sleep(0.01)
        running.discard(key)
        seen.append(key)
        if len(seen) == 6:
            done.set()
        return Result()

    queue = WorkQueue(work, asyncio.get_running_loop().time, Schedule(Pace(resync=0.05)), workers=3)
    for key in ("a", "b", "c"):
        queue.add(key)
    await drained(queue, done)
    assert most == 3


async def test_an_exception_is_a_failure_that_is_tried_again():
    tries, done = [], asyncio.Event()

    async def work(key):
        tries.append(key)
        if len(tries) == 3:
            done.set()
        if len(tries) == 1:
            raise RuntimeError("boom")
        return Result(failed=len(tries) == 2)

    queue = WorkQueue(work, asyncio.get_running_loop().time, Schedule(Pace(100.0, 0.01, 0.02)))
    queue.add("a")
    await drained(queue, done)
    assert tries == ["a", "a", "a"]


async def test_what_is_gone_does_not_come_back():
    done = asyncio.Event()

    async def work(key):
        done.set()
        return Result(gone=True)

    queue = WorkQueue(work, asyncio.get_running_loop().time, Schedule(Pace(resync=0.0)))
    queue.add("a")
    await drained(queue, done)
    assert "a" not in queue.schedule


@pytest.mark.parametrize(("failures", "pause"), [(1, 1.0), (2, 2.0), (10_000, 30.0)])
def test_the_pause_has_an_end(failures, pause):
    assert PACE.retry(failures) == pause
