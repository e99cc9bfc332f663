import pytest

from testbed.deadline import until
from testbed.errors import NotInTime


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_it_returns_as_soon_as_the_condition_holds():
    clock = Clock()
    until("noon", lambda: clock.now >= 1, seconds=60, clock=clock, sleep=clock.sleep)
    assert clock.now == pytest.approx(1, abs=0.1)


def test_it_names_what_was_awaited_and_where_to_look():
    clock = Clock()
    with pytest.raises(NotInTime, match=r"the API server: not after 60 s; see /log/x"):
        until("the API server", lambda: False, seconds=60, see="/log/x", clock=clock, sleep=clock.sleep)
    assert clock.now == pytest.approx(60, abs=0.1)


def test_what_the_condition_raises_ends_the_wait():
    with pytest.raises(ZeroDivisionError):
        until("nothing", lambda: 1 / 0 > 0)


def test_what_the_condition_returns_is_handed_on():
    assert until("a number", lambda: 7) == 7


def test_an_excused_exception_is_a_no_and_the_last_one_is_told():
    clock = Clock()
    with pytest.raises(NotInTime, match=r"a key: not after 2 s \(KeyError\('it'\)\)"):
        until(
            "a key",
            lambda: {}["it"],
            seconds=2,
            pause=0.5,
            excused=(LookupError,),
            clock=clock,
            sleep=clock.sleep,
        )
    assert clock.now == pytest.approx(2.5)
