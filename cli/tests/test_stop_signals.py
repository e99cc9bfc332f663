"""Signals as a wish."""

import os
import signal
from collections.abc import Iterator

import pytest

from mmdisagg_cli.stop_signals import Stopped, StopSignals


@pytest.fixture(autouse=True)
def handlers_are_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


def test_a_signal_stops_at_the_next_look_only() -> None:
    with StopSignals() as signals:
        signals.raise_if_received()
        os.kill(os.getpid(), signal.SIGTERM)
        assert not signals.impatient
        with pytest.raises(Stopped, match="SIGTERM") as stop:
            signals.raise_if_received()
    assert stop.value.exit_code == 143


def test_the_second_signal_is_impatient_and_the_first_one_counts() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.impatient
        with pytest.raises(Stopped, match="SIGINT"):
            signals.raise_if_received()


def test_nohup_is_respected() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        signals.raise_if_received()
    signal.signal(signal.SIGHUP, previous)
