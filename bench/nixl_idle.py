"""Idle CPU and transfer latency of a pair of NIXL agents, as NIXL ships and with the quiet progress thread.

    python bench/nixl_idle.py [--transfers 40] [--idle-seconds 3] [-o json]

Both variants run in one go on the same machine, interleaved, so their ratio means something where absolute
times do not. Needs the engine extra, no GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from mmdisagg_workers.engine.quiet_nixl import quiet

BYTES = 1 << 20
ROUNDS = 2


@dataclass(frozen=True)
class Sample:
    """One run of one variant.

    Attributes:
        idle_cores: CPU seconds per second that the reading agent uses after its last transfer.
        owner_idle_cores: the same for the agent that owns the memory.
        median_ms: median time of a transfer of 1 MiB, milliseconds.
        worst_ms: slowest transfer but the first, milliseconds.
    """

    idle_cores: float
    owner_idle_cores: float
    median_ms: float
    worst_ms: float


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _idle_cores(seconds: float) -> float:
    before = _cpu_seconds()
    time.sleep(seconds)
    return (_cpu_seconds() - before) / seconds


def _agent(name: str, quieted: bool) -> Any:
    api = importlib.import_module("nixl._api")
    if quieted:
        quiet(sys.modules[api.nixl_agent.__module__])
    return api.nixl_agent(name, api.nixl_agent_config())


def _own(peer: Connection, quieted: bool, idle_seconds: float) -> None:
    agent = _agent("owner", quieted)
    memory = np.ones(BYTES, dtype=np.uint8)
    agent.register_memory([(memory.ctypes.data, BYTES, 0, "")], "DRAM")
    peer.send((agent.get_agent_metadata(), memory.ctypes.data))
    peer.recv()
    peer.send(_idle_cores(idle_seconds))


def _read(agent: Any, remote: str, local: np.ndarray, address: int) -> float:
    here = agent.get_xfer_descs([(local.ctypes.data, BYTES, 0)], "DRAM")
    there = agent.get_xfer_descs([(address, BYTES, 0)], "DRAM")
    start = time.perf_counter()
    handle = agent.initialize_xfer("READ", here, there, remote, b"done")
    state = agent.transfer(handle)
    while state not in ("DONE", "ERR"):
        state = agent.check_xfer_state(handle)
    elapsed = (time.perf_counter() - start) * 1000
    agent.release_xfer_handle(handle)
    if state == "ERR" or int(local.sum()) != BYTES:
        raise RuntimeError("the transfer brought other bytes")
    return elapsed


def _fetch(peer: Connection, result: Connection, quieted: bool, transfers: int, idle_seconds: float) -> None:
    agent = _agent("reader", quieted)
    metadata, address = peer.recv()
    remote = agent.add_remote_agent(metadata)
    local = np.zeros(BYTES, dtype=np.uint8)
    agent.register_memory([(local.ctypes.data, BYTES, 0, "")], "DRAM")
    times = []
    for _ in range(transfers):
        local[:] = 0
        times.append(_read(agent, remote, local, address))
        time.sleep(0.02)
    peer.send("idle now")
    idle = _idle_cores(idle_seconds)
    result.send(Sample(idle, peer.recv(), statistics.median(times), max(times[1:])))


def measure(quieted: bool, transfers: int, idle_seconds: float) -> Sample:
    """Run one pair of agents in processes of their own and return what they measured."""
    context = multiprocessing.get_context("spawn")
    owner_end, reader_end = context.Pipe()
    result, result_end = context.Pipe(duplex=False)
    processes = [
        context.Process(target=_own, args=(owner_end, quieted, idle_seconds)),
        context.Process(target=_fetch, args=(reader_end, result_end, quieted, transfers, idle_seconds)),
    ]
    for process in processes:
        process.start()
    try:
        if not result.poll(60 + idle_seconds):
            raise TimeoutError("the agents did not finish")
        sample: Sample = result.recv()
        return sample
    finally:
        for process in processes:
            process.terminate()
            process.join()


def compare(transfers: int, idle_seconds: float) -> dict[str, object]:
    """Measure both variants `ROUNDS` times, interleaved, and return the medians and their ratios."""
    runs: dict[bool, list[Sample]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for quieted, samples in runs.items():
            samples.append(measure(quieted, transfers, idle_seconds))
    stock, calm = (_median(runs[False]), _median(runs[True]))
    ratios = {name: calm_value / getattr(stock, name) for name, calm_value in asdict(calm).items()}
    return {"stock": asdict(stock), "quiet": asdict(calm), "quiet_to_stock": ratios}


def _median(samples: list[Sample]) -> Sample:
    return Sample(
        **{name: statistics.median(getattr(s, name) for s in samples) for name in asdict(samples[0])}
    )


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--transfers", type=int, default=40)
    parser.add_argument("--idle-seconds", type=float, default=3.0)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options = parser.parse_args()
    report = compare(options.transfers, options.idle_seconds)
    if options.output == "json":
        print(json.dumps(report, indent=1))
        return
    for name, values in report.items():
        print(f"{name:>15}", "  ".join(f"{key} {value:.3f}" for key, value in dict(values).items()))  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
