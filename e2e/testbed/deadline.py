"""Waiting for a condition, never for luck."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from testbed.errors import NotInTime

PAUSE_SECONDS = 0.05

R = TypeVar("R")


def until(
    what: str,
    condition: Callable[[], R],
    *,
    seconds: float = 60,
    see: str = "",
    pause: float = PAUSE_SECONDS,
    excused: tuple[type[Exception], ...] = (),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> R:
    """Return what ``condition()`` returns once that is true.

    Args:
        what: What is awaited, in the words of the error message.
        condition: Asked again and again; what it raises ends the wait, unless it is excused.
        seconds: The deadline.
        see: Where a reader finds the cause, for the error message.
        pause: Seconds between two questions.
        excused: Exceptions that count as a no; the message names the last one.
        clock: Source of monotonic seconds.
        sleep: Pauses between two questions.

    Raises:
        NotInTime: The condition is still false at the deadline.
    """
    end, excuse = clock() + seconds, ""
    while True:
        try:
            if found := condition():
                return found
        except excused as error:
            excuse = f" ({error!r})"
        if clock() > end:
            raise NotInTime(f"{what}: not after {seconds:g} s{excuse}" + (f"; see {see}" if see else ""))
        sleep(pause)
