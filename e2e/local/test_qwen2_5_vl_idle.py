"""What is left when nothing happens: no blocks after the lease, no processor time, no core taken away."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pictures import about, image_part, noise
from stack import KV_LEASE_SECONDS, eventually

SETTLE_SECONDS = 10
"""After a request vLLM's workers poll without a pause for a second (`busy_loop_s` of its shm_broadcast): 7 % of
a core over the first ten seconds, 3 % later."""
MEASURED_SECONDS = 10
MOST_OF_A_CORE = 0.05
TICKS = os.sysconf("SC_CLK_TCK")
ROLES = ("encode", "prefill", "decode")


def test_blocks_that_decode_never_fetches_are_free_after_the_lease(qwen):
    stack = qwen()
    prefill = stack.engine("prefill")
    expired = prefill.metric("vllm:nixl_num_kv_expired_reqs_total")
    eventually(lambda: blocks(prefill) == 0, KV_LEASE_SECONDS + 5, "earlier leases are over")
    stack.stages.prefill_content(about(image_part(noise(900))))
    kept = time.monotonic()
    assert blocks(prefill) > 0
    eventually(lambda: blocks(prefill) == 0, KV_LEASE_SECONDS + 5, "prefill frees its blocks")
    assert time.monotonic() - kept > KV_LEASE_SECONDS / 2
    eventually(
        lambda: prefill.metric("vllm:nixl_num_kv_expired_reqs_total") == expired + 1, 20, "it is counted"
    )


@pytest.mark.case("x06")
def test_idle_engines_use_almost_no_processor_time_and_may_run_on_all_cores(qwen):
    stack = qwen()
    assert stack.router().ask(about(image_part(noise(910)))).status == 200
    assert stack.engine("decode").metric("vllm:nixl_xfer_time_seconds_count") > 0
    eventually(
        lambda: blocks(stack.engine("prefill")) == blocks(stack.engine("decode")) == 0,
        KV_LEASE_SECONDS + 5,
        "leases are over",
    )
    time.sleep(SETTLE_SECONDS)
    members = {role: [process.pid for process in stack.processes(role)] for role in ROLES}
    assert all(len(pids) >= 3 for pids in members.values()), members
    before = {role: cpu_seconds(pids) for role, pids in members.items()}
    started = time.monotonic()
    time.sleep(MEASURED_SECONDS)
    seconds = time.monotonic() - started
    cores = {role: (cpu_seconds(pids) - before[role]) / seconds for role, pids in members.items()}
    assert all(used < MOST_OF_A_CORE for used in cores.values()), cores
    for role, pids in members.items():
        assert {pid: os.sched_getaffinity(pid) for pid in pids} == dict.fromkeys(
            pids, os.sched_getaffinity(0)
        ), role


def blocks(engine) -> float:
    """The share of KV blocks that are in use."""
    return engine.metric("vllm:kv_cache_usage_perc")


def cpu_seconds(pids: list[int]) -> float:
    """Processor time of these processes with all their threads, from /proc."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(stat[11]) + int(stat[12]) for stat in fields) / TICKS
