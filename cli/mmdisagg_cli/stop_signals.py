"""SIGINT, SIGTERM and SIGHUP as a wish that is looked at between two steps, never in the middle of one.

A signal that raises wherever the program happens to be can interrupt the very code that ends the engines.
Here the first signal asks for an orderly stop, a second one for a quick one; neither can skip it.
"""

import signal
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """The user or the system asked the command to stop; `exit_code` is what a shell expects then."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}")


class StopSignals:
    """While entered, remembers the signals that ask for a stop."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        wanted = [number for number in _SIGNALS if not _is_ignored_hangup(number)]
        self._previous = {number: signal.signal(number, self._remember) for number in wanted}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def impatient(self) -> bool:
        """True after the second signal: no more grace for what still runs."""
        return len(self._received) > 1

    def raise_if_received(self) -> None:
        """Raise `Stopped` once a signal has come in."""
        if self._received:
            raise Stopped(self._received[0])

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)


def _is_ignored_hangup(number: signal.Signals) -> bool:
    """True for a hang-up that `nohup` has switched off on purpose."""
    return number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
