"""Runs a command's work in the background, in a session of its own, and returns once it says that it is
ready.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

Work = Callable[[Callable[[Path], None]], int]
"""Work that calls its argument, with the path of a log, once it is ready, goes on, and returns an exit code.
"""


def in_background(work: Work) -> int | None:
    """Run `work` in a child process; relay what it writes until it is ready.

    Returns None once the work is ready, or its exit code when it ended before. Signals that arrive while
    waiting are passed on to it. Call it before any thread was started.
    """
    output, readiness = os.pipe(), os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _run_child(work, output[1], readiness[1])
    os.close(output[1])
    os.close(readiness[1])
    _relay(output[0], child)
    with os.fdopen(readiness[0], "rb") as pipe:
        if pipe.read():
            return None
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run_child(work: Work, output: int, readiness: int) -> NoReturn:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(output)

    def ready(log: Path) -> None:
        os.write(readiness, b"ready")
        os.close(readiness)
        _write_to(log)

    try:
        code = work(ready)
    except BaseException as error:  # The child must never return into its parent's stack.
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _write_to(log: Path) -> None:
    """Write to a log from here on; this closes the pipe that the waiting parent reads to its end."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _relay(reader: int, child: int) -> None:
    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    previous = {
        number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while chunk := pipe.read(4096):
            sys.stderr.buffer.write(chunk)
            sys.stderr.flush()
    for number, handler in previous.items():
        signal.signal(number, handler)
