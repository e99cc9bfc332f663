import pytest

from testbed.steps import Steps


def test_each_step_shows_its_own_seconds_and_the_total_those_since_the_start():
    lines, times = [], iter([0.0, 1.0, 3.5, 4.0])
    steps = Steps(show=lines.append, clock=lambda: next(times))
    with steps.timed("control plane"):
        pass
    steps.total("2 nodes")
    assert lines == ["    2.5 s  control plane", "    4.0 s  in all: 2 nodes"]


def test_a_step_that_fails_shows_nothing():
    lines = []
    steps = Steps(show=lines.append)
    with pytest.raises(ValueError), steps.timed("control plane"):  # noqa: PT011
        raise ValueError
    assert lines == []
