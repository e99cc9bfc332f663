"""Waiting for a condition, never for luck."""

from __future__ import annotations

import time
from collections.abc import Callable

from testbed.errors import NotInTime

PAUSE_SECONDS = 0.05


def until(
    what: str,
    condition: Callable[[], bool],
    *,
    seconds: float = 60,
    see: str = "",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once ``condition()`` is true.

    Args:
        what: What is awaited, in the words of the error message.
        condition: Asked about twenty times a second; what it raises ends the wait.
        seconds: The deadline.
        see: Where a reader finds the cause, for the error message.
        clock: Source of monotonic seconds.
        sleep: Pauses between two questions.

    Raises:
        NotInTime: The condition is still false at the deadline.
    """
    end = clock() + seconds
    while not condition():
        if clock() > end:
            raise NotInTime(f"{what}: not after {seconds:g} s" + (f"; see {see}" if see else ""))
        sleep(PAUSE_SECONDS)
