"""Clients that stream without a pause while something happens to the deployment."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import requests
from chat import Answer, Server
from kubectl import Outside, Refused

DEADLINE_SECONDS = 120


@dataclass(frozen=True)
class Told:
    """What one client got, and when it had asked, in seconds of the monotonic clock."""

    question: int
    answer: Answer
    asked: float
    ended: float

    @property
    def whole(self) -> bool:
        """Whether the stream came to its end."""
        return self.answer.status == 200

    @property
    def seconds(self) -> float:
        return self.ended - self.asked


@dataclass
class Streams:
    """Some clients, each with one request after the other, until told to stop.

    Attributes:
        outside: the way to the router.
        contents: what they ask, in turn.
        clients: how many there are.
        fields: more of each request.
    """

    outside: Outside
    contents: Sequence[Any]
    clients: int = 4
    fields: dict[str, Any] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Streams:
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(self.clients)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> list[Told]:
        """Let every client finish what it has asked; returns what all of them got."""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * DEADLINE_SECONDS)
            assert not thread.is_alive(), "a request is stuck"
        return self.told

    def _run(self, number: int) -> None:
        while not self._stop.is_set():
            question = number % len(self.contents)
            asked = time.monotonic()
            answer = self._ask(self.contents[question])
            self.told.append(Told(question, answer, asked, time.monotonic()))
            number += self.clients
            if answer.status != 200:
                time.sleep(1)

    def _ask(self, content: Any) -> Answer:
        try:
            server = Server(self.outside.url, "shapes")
            return server.stream(content, **self.fields)
        except (requests.RequestException, Refused) as error:
            return Answer(0, body=repr(error))
