"""Many mixed requests side by side: every answer right, and nothing that grows or stays behind."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from pictures import about, image_part, noise, text_part, video_part
from stack import KV_LEASE_SECONDS, eventually
from test_qwen2_5_vl import assert_same

from mmdisagg_cli.scenes import filler, question
from mmdisagg_workers.contract import DecodeForm

REQUESTS = 500 if os.environ.get("MMDISAGG_LONG") else 25
AT_ONCE = 8
ROLES = ("encode", "prefill", "decode", "router")
MEBIBYTE = 1 << 20
MOST_GROWTH = 200 * MEBIBYTE
"""Of one role, while it serves requests that it has served before: caches are full, only leaks grow."""


def workload():
    """Pictures, videos and texts in turn, each asked once."""
    rng = random.Random(60)
    kinds = (
        lambda n: question(rng, 1 + n % 3, 40 * (n % 2)).content(),
        lambda n: about(image_part(noise(6000 + n, 56 + 28 * (n % 4), 84)), words=20 * (n % 3), seed=n),
        lambda n: [text_part(filler(random.Random(n), 60) + " What is in the image?")],
        lambda n: question(rng, 1, 40).content(),
        lambda n: about(video_part(600 + n), image_part(noise(7000 + n))),
    )
    return [kinds[n % len(kinds)](n) for n in range(REQUESTS)]


@pytest.mark.timeout(3600)
def test_a_soak_answers_right_and_leaves_nothing_behind(qwen):
    stack = qwen()
    contents = workload()
    references = stack.reference.ask_all(contents, at_once=4, ignore_eos=True)
    encode, prefill, decode = (stack.engine(role) for role in ("encode", "prefill", "decode"))
    blocks_come_free(prefill)
    expired = prefill.metric("vllm:nixl_num_kv_expired_reqs_total")
    zeros, metadata = stack.router(DecodeForm.ZERO_EMBEDDING), stack.router(DecodeForm.METADATA_ONLY)
    assert_same(zeros.ask_all(contents, AT_ONCE, ignore_eos=True), references)
    stored, used = encode.metric("mmdisagg_embedding_published_total"), memory(stack)
    assert_same(metadata.stream_all(contents, AT_ONCE, ignore_eos=True), references)
    assert_same(zeros.stream_all(contents, AT_ONCE, ignore_eos=True), references)
    assert encode.metric("mmdisagg_embedding_published_total") == stored
    grown = {role: now - used[role] for role, now in memory(stack).items()}
    assert all(growth < MOST_GROWTH for growth in grown.values()), grown
    for engine in (prefill, decode):
        blocks_come_free(engine)
        assert engine.metric("vllm:num_requests_running") == engine.metric("vllm:num_requests_waiting") == 0
    assert prefill.metric("vllm:nixl_num_kv_expired_reqs_total") == expired
    assert zeros.metric("mmdisagg_router_requests_in_flight") == 0


def blocks_come_free(engine) -> None:
    """Wait until no KV block is in use, at most as long as leases last."""
    free = lambda: engine.metric("vllm:kv_cache_usage_perc") == 0  # noqa: E731
    eventually(free, KV_LEASE_SECONDS + 5, "all blocks are free")


def memory(stack) -> dict[str, int]:
    """Bytes of memory that each role's processes use, what they share counted once per sharer."""
    return {role: sum(resident(process.pid) for process in stack.processes(role)) for role in ROLES}


def resident(pid: int) -> int:
    """The proportional set size of a process, bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith("Pss:"))
    return int(kibibytes) * 1024
