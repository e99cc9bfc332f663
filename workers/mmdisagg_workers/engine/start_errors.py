"""Why a worker refuses to start, each with the exit code that the operator turns into a condition.

    StartError
    ├── UnknownFamily (40)        the model has no decode contract, or is not the family that was named
    ├── WrongEngineVersion (41)   another vLLM than the supported one is installed
    └── BadSettings (42)          an argument or an environment variable is missing or malformed

The message is one line: it becomes the container's termination message.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import ClassVar, Final

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""Where a kubelet reads the message of a container that ended; absent outside of pods."""


class StartError(Exception):
    """The worker cannot start; another try with the same settings fails in the same way."""

    exit_code: ClassVar[int]


class UnknownFamily(StartError):
    """The model has no decode contract, or its `config.json` contradicts the family that was named."""

    exit_code = 40


class WrongEngineVersion(StartError):
    """Another vLLM than the supported one is installed."""

    exit_code = 41


class BadSettings(StartError):
    """An argument or an environment variable is missing or malformed."""

    exit_code = 42


def report(error: StartError, termination_log: Path = TERMINATION_LOG) -> None:
    """Print the message to standard error and, in a pod, leave it for the kubelet."""
    line = f"{type(error).__name__}: {' '.join(str(error).split())}"
    print(f"mmdisagg-worker: {line}", file=sys.stderr, flush=True)
    if termination_log.exists():
        with contextlib.suppress(OSError):
            termination_log.write_text(line)
