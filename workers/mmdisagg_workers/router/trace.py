"""What is remembered about one request: for its log line, its metrics and its response headers."""

from __future__ import annotations

import itertools
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def accepted_request_id(offered: str | None) -> str:
    """Return a client's request id when it is sane, else a new one."""
    if offered is not None and _REQUEST_ID.fullmatch(offered):
        return offered
    return f"req-{uuid.uuid4().hex}"


class LegIds:
    """Makes the ids under which legs reach engines; they never repeat, whatever clients send."""

    def __init__(self) -> None:
        self._nonce = uuid.uuid4().hex[:8]
        self._count = itertools.count()

    def next(self, request_id: str, stage: str) -> str:
        """Return the id of one attempt at one stage."""
        return f"{request_id}.{self._nonce}{next(self._count):x}-{stage}"


@dataclass
class Trace:
    """One request on its way.

    Attributes:
        request_id: the id that the client sees.
        path: the API path.
        started: monotonic start, in seconds.
        deadline: time of the event loop's clock at which the request is given up, in seconds.
        model: the model asked for, once known.
        stream: whether the client asked for a stream.
        tenant: who asks, where a header says it.
        media: pictures and videos in the request.
        seconds: time per stage; decode's ends at its first token in a stream.
        sent: bytes of request bodies per stage, attempts added up.
        retries: legs that were sent again after a failure before the first token.
        re_encodes: times all media were encoded again after an embedding was lost.
        looked_up: distinct inline media that the router may have remembered.
        remembered: those that it had, so that encode was not asked.
    """

    request_id: str
    path: str
    started: float
    deadline: float
    model: str = ""
    stream: bool = False
    tenant: str = ""
    media: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    re_encodes: int = 0
    looked_up: int = 0
    remembered: int = 0

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - started

    def note_sent(self, stage: str, size: int) -> None:
        """Add the size of a leg's body, in bytes."""
        self.sent[stage] = self.sent.get(stage, 0) + size

    def headers(self) -> dict[str, str]:
        """Return the response headers that show the request's way."""
        headers = {"x-request-id": self.request_id}
        if self.seconds:
            timing = (f"{stage};dur={seconds * 1000:.1f}" for stage, seconds in self.seconds.items())
            headers["Server-Timing"] = ", ".join(timing)
        if "decode" in self.sent:
            headers["x-mmdisagg-decode-bytes"] = str(self.sent["decode"])
        return headers
