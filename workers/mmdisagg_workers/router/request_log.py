"""One JSON line per request: who, how long in which stage, and how it ended. Never any content."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from .errors import RouterError
from .trace import Trace


def request_line(trace: Trace, status: int, outcome: str, error: RouterError | None) -> dict[str, object]:
    """Return the fields of a finished request's line; times in milliseconds, sizes in bytes."""
    line: dict[str, object] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": trace.request_id,
        "path": trace.path,
        "model": trace.model,
        "status": status,
        "outcome": outcome,
        "stream": trace.stream,
        "media": trace.media,
        "total_ms": _ms(time.monotonic() - trace.started),
        "stages_ms": {stage: _ms(seconds) for stage, seconds in trace.seconds.items()},
        "sent_bytes": trace.sent,
        "retries": trace.retries,
        "re_encodes": trace.re_encodes,
    }
    if error is not None:
        line["error"] = error.code
    return line


class RequestLog:
    """Writes the lines."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def record(self, trace: Trace, status: int, outcome: str, error: RouterError | None) -> None:
        """Write the line of a finished request."""
        line = request_line(trace, status, outcome, error)
        self._write(msgspec.json.encode(line).decode() + "\n")


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
