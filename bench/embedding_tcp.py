"""The embedding port against a plain socket, and what a slow fetch does to a step loop.

    python bench/embedding_tcp.py [--seconds 2] [--rounds 5] [-o json]

The plain socket copies the same bytes. Sender and receiver are processes of their own on loopback, both
variants take turns on the same machine, and the memory on both sides has been used before, so the ratios mean
something where absolute rates do not. The latency is that of a consumer's whole fetch of 7 MB: a new thread,
connecting, both proofs, the bytes.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from typing import Final

import torch

from mmdisagg_workers.engine.tcp_handoff.arrivals import Arrivals, State, Wanted
from mmdisagg_workers.engine.tcp_handoff.client import Peer, PeerConnection
from mmdisagg_workers.engine.tcp_handoff.connection import Connection, greet_client
from mmdisagg_workers.engine.tcp_handoff.protocol import REQUEST_BYTES, HandoffError, Layout, encode_reply
from mmdisagg_workers.engine.tcp_handoff.server import EmbeddingServer
from mmdisagg_workers.engine.tcp_handoff.store import HostStore

LAYOUT: Final = Layout("bfloat16", 1024, 3584)
"""A picture of 1,024 tokens of Qwen2.5-VL-7B: 7.3 MB."""
HOST: Final = "127.0.0.1"
TOKEN: Final = "0123456789abcdef" * 2
STREAMS: Final = (1, 8)
LATENCIES: Final = 30
_SLOW_PIECE: Final = 1 << 14
_SLOW_PAUSE: Final = 0.01


def _identity(number: int) -> str:
    return f"{number:064x}"


def _serve(ports: Pipe) -> None:
    store = HostStore(4 * LAYOUT.size, lambda name, amount: None)
    for number in range(2):
        store.publish(_identity(number), torch.ones(LAYOUT.rows, LAYOUT.width, dtype=torch.bfloat16))
    server = EmbeddingServer(HOST, 0, TOKEN, store, lambda name, amount: None)
    plain, slow = socket.create_server((HOST, 0)), socket.create_server((HOST, 0))
    threading.Thread(target=_accept, args=(plain, _send_for_ever), daemon=True).start()
    threading.Thread(target=_accept, args=(slow, _send_slowly), daemon=True).start()
    ports.send((server.port, plain.getsockname()[1], slow.getsockname()[1]))
    ports.recv()


def _accept(listener: socket.socket, handle: Callable[[socket.socket], None]) -> None:
    while True:
        threading.Thread(target=handle, args=(listener.accept()[0],), daemon=True).start()


def _send_for_ever(sock: socket.socket) -> None:
    content = bytes(LAYOUT.size)
    try:
        while True:
            sock.sendall(content)
    except OSError:
        sock.close()


def _send_slowly(sock: socket.socket) -> None:
    try:
        with Connection(sock) as connection:
            greet_client(connection, TOKEN)
            connection.read(REQUEST_BYTES)
            connection.send(encode_reply(LAYOUT))
            for start in range(0, LAYOUT.size, _SLOW_PIECE):
                connection.send(bytes(min(_SLOW_PIECE, LAYOUT.size - start)))
                time.sleep(_SLOW_PAUSE)
    except HandoffError:
        return


@contextmanager
def _servers() -> Iterator[tuple[int, int, int]]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.terminate()
        process.join()


def _fetch_one(port: int) -> Callable[[memoryview], None]:
    connection = PeerConnection(Peer(HOST, port), TOKEN)
    return lambda target: connection.fetch(_identity(0), LAYOUT, target)


def _copy_one(port: int) -> Callable[[memoryview], None]:
    sock = socket.create_connection((HOST, port))

    def copy(target: memoryview) -> None:
        got = 0
        while got < len(target):
            got += sock.recv_into(target[got:])

    return copy


def rate(
    connect: Callable[[int], Callable[[memoryview], None]], port: int, streams: int, seconds: float
) -> float:
    """Return bytes per second over some streams at once, each into memory of its own."""
    totals = [0] * streams
    ready = threading.Barrier(streams + 1)

    def run(stream: int) -> None:
        take, target = connect(port), memoryview(bytearray(LAYOUT.size))
        take(target)
        ready.wait()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            take(target)
            totals[stream] += LAYOUT.size

    threads = [threading.Thread(target=run, args=(stream,)) for stream in range(streams)]
    for thread in threads:
        thread.start()
    ready.wait()
    started = time.monotonic()
    for thread in threads:
        thread.join()
    return sum(totals) / (time.monotonic() - started)


def latency(port: int) -> list[float]:
    """Return the seconds of a consumer's fetches; there is memory for one, so that each is a new one."""
    arrivals, seconds = Arrivals(LAYOUT.size, TOKEN), []
    for number in range(LATENCIES):
        started = time.perf_counter()
        (arrival,) = arrivals.take([Wanted(_identity(number % 2), LAYOUT, Peer(HOST, port))]) or ()
        while arrival.state is State.COMING:
            time.sleep(0.0002)
        seconds.append(time.perf_counter() - started)
        if arrival.state is not State.HERE:
            raise RuntimeError("a fetch failed")
        arrivals.give_back(arrival)
    return seconds[1:]


def longest_step(port: int | None, seconds: float) -> float:
    """Return the longest time between two steps of a loop that asks for an embedding in each, as vLLM's does.

    Args:
        port: of a peer that sends slowly; None for a loop without a fetch.
        seconds: how long to watch.
    """
    arrivals, wanted = Arrivals(LAYOUT.size, TOKEN), []
    if port is not None:
        wanted = [Wanted(_identity(0), LAYOUT, Peer(HOST, port))]
    longest, end, last = 0.0, time.monotonic() + seconds, time.perf_counter()
    while time.monotonic() < end:
        for arrival in arrivals.take(wanted) or ():
            arrivals.give_back(arrival)
        sum(range(20_000))
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


def compare(seconds: float, rounds: int) -> dict[str, float]:
    """Measure everything, both variants in turn; rates and ratios are medians of the rounds."""
    report: dict[str, float] = {}
    with _servers() as (tcp, plain, slow):
        for streams in STREAMS:
            ratios, rates = [], []
            for _ in range(rounds):
                ours, theirs = (
                    rate(connect, port, streams, seconds / 2)
                    for connect, port in ((_fetch_one, tcp), (_copy_one, plain))
                )
                ratios.append(ours / theirs)
                rates.append(ours)
            report[f"{streams}_streams_gb_per_s"] = statistics.median(rates) / 1e9
            report[f"{streams}_streams_to_plain"] = statistics.median(ratios)
        times = latency(tcp)
        report["latency_ms"] = statistics.median(times) * 1e3
        report["worst_latency_ms"] = max(times) * 1e3
        # Other processes only ever make a step longer, so the best round says most.
        pairs = [(longest_step(None, seconds), longest_step(slow, seconds)) for _ in range(rounds)]
        report["longest_step_without_fetch_ms"] = min(quiet for quiet, _ in pairs) * 1e3
        report["longest_step_during_slow_fetch_ms"] = min(fetching for _, fetching in pairs) * 1e3
    return report


def main() -> None:
    """Print the comparison."""
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options = parser.parse_args()
    report = compare(options.seconds, options.rounds)
    if options.output == "json":
        print(json.dumps(report, indent=1))
        return
    for name, value in report.items():
        print(f"{name:>36} {value:8.3f}")


if __name__ == "__main__":
    main()
