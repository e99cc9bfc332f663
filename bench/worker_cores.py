"""Decode's time under load: its worker on all cores, and on the one core where vLLM's NIXL connector puts it.

    python bench/worker_cores.py [--rounds 3] [--requests 24] [-o json]

On CPUs the connector (vLLM 0.32.0) pins the main thread of every prefill and decode worker to the last core;
`mmdisagg_workers.engine.worker_cores` undoes that. Here the same engines serve both ways in turns: between
rounds the affinity of the workers' main threads is set from outside, so the ratio is of one run. Starts
examples/local/shapes.yaml (three engines, two minutes) and ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from mmdisagg_cli import scenes
from mmdisagg_cli.chat import ChatClient, Content
from mmdisagg_cli.demo import server_timing
from mmdisagg_cli.deployment_file import read_deployment
from mmdisagg_cli.local import LocalDeployment
from mmdisagg_cli.processes import session_members

FILE = Path(__file__).parents[1] / "examples/local/shapes.yaml"
AT_ONCE = 8
MAX_TOKENS = 24
START_SECONDS = 420
ALL_CORES = frozenset(os.sched_getaffinity(0))
LAST_CORE = frozenset({max(ALL_CORES)})


@dataclass(frozen=True)
class Times:
    """How long requests took, milliseconds.

    Attributes:
        decode_ms: median of the decode leg as the router measured it: KV transfer and all tokens.
        decode_p90_ms: 90th percentile of it.
        request_ms: median of the whole request at the client.
    """

    decode_ms: float
    decode_p90_ms: float
    request_ms: float


def worker_processes(local: LocalDeployment) -> list[int]:
    """Return the processes of prefill and decode in which vLLM's workers run."""
    leaders = [local.role(role).process for role in ("prefill", "decode")]
    members = [member.pid for leader in leaders if leader for member in session_members(leader)]
    workers = [pid for pid in members if Path(f"/proc/{pid}/comm").read_text().startswith("VLLM::Worker")]
    if len(workers) != len(leaders):
        raise RuntimeError(f"found {len(workers)} worker processes")
    return workers


def place(pids: Iterable[int], cores: frozenset[int]) -> None:
    """Let the main threads of these processes run on these cores."""
    for pid in pids:
        os.sched_setaffinity(pid, cores)


def round_of(client: ChatClient, rng: random.Random, requests: int) -> list[tuple[float, float]]:
    """Ask about new pictures, `AT_ONCE` at a time; return (decode, whole) milliseconds of each request."""
    contents = [scenes.question(rng, filler_words=40).content() for _ in range(requests)]

    def timed(content: Content) -> tuple[float, float]:
        started = time.perf_counter()
        answer = client.ask(content, MAX_TOKENS)
        whole = (time.perf_counter() - started) * 1000
        return server_timing(answer.headers["server-timing"])["decode"], whole

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(timed, contents))


def summary(rounds: list[tuple[float, float]]) -> Times:
    """Put all requests of one variant together."""
    decode, whole = zip(*rounds, strict=True)
    return Times(statistics.median(decode), statistics.quantiles(decode, n=10)[-1], statistics.median(whole))


def compare(rounds: int, requests: int) -> dict[str, dict[str, float]]:
    """Serve both ways `rounds` times in turns; return both summaries and their ratio."""
    file = read_deployment(FILE)
    variants = {"last_core": LAST_CORE, "all_cores": ALL_CORES}
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    with LocalDeployment(file.deployment, file.base) as local:
        local.start(print)
        local.wait_ready(START_SECONDS)
        client = ChatClient(local.url, file.deployment.spec.model.served_name)
        workers, rng = worker_processes(local), random.Random(1)
        round_of(client, rng, AT_ONCE)
        for _ in range(rounds):
            for name, cores in variants.items():
                place(workers, cores)
                samples[name] += round_of(client, rng, requests)
    one, every = (asdict(summary(samples[name])) for name in variants)
    ratio = {name: one[name] / value for name, value in every.items()}
    return {"last_core": one, "all_cores": every, "last_core_to_all_cores": ratio}


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=24, help="per round (default: %(default)d)")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options = parser.parse_args()
    report = compare(options.rounds, options.requests)
    if options.output == "json":
        print(json.dumps(report, indent=1))
        return
    for name, values in report.items():
        print(f"{name:>22}", "  ".join(f"{key} {value:.2f}" for key, value in values.items()))


if __name__ == "__main__":
    main()
