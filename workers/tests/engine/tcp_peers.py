"""Both ends of the embedding handoff on 127.0.0.1, and waiting for what threads do."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

import torch

from mmdisagg_workers.engine.tcp_handoff.arrivals import Arrivals, State, Wanted
from mmdisagg_workers.engine.tcp_handoff.client import Peer
from mmdisagg_workers.engine.tcp_handoff.memory import tensor_at
from mmdisagg_workers.engine.tcp_handoff.protocol import Layout
from mmdisagg_workers.engine.tcp_handoff.server import EmbeddingServer
from mmdisagg_workers.engine.tcp_handoff.store import HostStore

TOKEN = "a-stage-token-of-more-than-32-characters"
HOST = "127.0.0.1"
LAYOUT = Layout("float32", 4, 8)
SHORT = 0.4
"""Seconds: time limits in tests."""


def identity(number: int) -> str:
    return f"{number:064x}"


def embedding(value: float, rows: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((rows, 8), value, dtype=dtype)


class Encode:
    """A store with its server, and what they counted."""

    def __init__(self, capacity: int = 1 << 22, token: str = TOKEN, seconds: float = SHORT) -> None:
        self.counts: Counter[str] = Counter()
        self.ended: list[int] = []
        self.store = HostStore(capacity, self.count)
        self.server = EmbeddingServer(
            HOST,
            0,
            token,
            self.store,
            self.count,
            self.ended.append,
            handshake_seconds=seconds,
            idle_seconds=seconds,
        )
        self.peer = Peer(HOST, self.server.port)

    def count(self, name: str, amount: float) -> None:
        self.counts[name] += amount  # type: ignore[assignment]

    def publish(self, *numbers: int) -> None:
        for number in numbers:
            assert self.store.publish(identity(number), embedding(number)) is not None

    def wanted(self, number: int, layout: Layout = LAYOUT) -> Wanted:
        return Wanted(identity(number), layout, self.peer)


class Scripted:
    """A peer that does with each connection what the test says."""

    def __init__(self, script: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.peer = Peer(HOST, self._listener.getsockname()[1])
        self.connections = 0
        self._script = script
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                self._script(connection)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def wanted(self, number: int) -> Wanted:
        return Wanted(identity(number), LAYOUT, self.peer)


def arrivals(capacity: int = 1 << 20, token: str = TOKEN, seconds: float = SHORT) -> Arrivals:
    return Arrivals(capacity, token, seconds)


def settle(*found) -> list[State]:
    """Wait until no arrival is coming any more; returns how they ended."""
    eventually(lambda: all(arrival.state is not State.COMING for arrival in found))
    return [arrival.state for arrival in found]


def content(owner: Arrivals, arrival) -> torch.Tensor:
    return tensor_at(owner._arena.memory, arrival.block.start, arrival.wanted.layout).clone()


def eventually(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
