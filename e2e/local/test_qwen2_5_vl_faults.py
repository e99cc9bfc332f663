"""Faults under load: every request ends in the right answer or an explicit error, and the next ones are right."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import requests
from chat import DEADLINE_SECONDS, Answer
from pictures import about, image_part, noise
from stack import KV_LEASE_SECONDS, eventually

from mmdisagg_cli.scenes import question
from mmdisagg_workers.contract import DecodeForm

ERRORS = {500, 502, 503, 504}
AT_ONCE = 8


@pytest.fixture
def questions(request):
    rng = random.Random(request.node.name)
    return [question(rng, 1 + n % 2, 20).content() for n in range(20)]


@pytest.mark.case("t09")
@pytest.mark.parametrize(
    "wrong",
    [{"remote_host": "127.0.0.2"}, {"remote_port": 1}, {"remote_engine_id": "0" * 36, "remote_port": 1}],
    ids=["host", "port", "engine"],
)
def test_kv_that_cannot_be_fetched_is_never_wrong_text_and_decode_lives(qwen, wrong):
    """An engine that decode already knows is found by its id; an unknown one at a dead address is an error."""
    stack = qwen()
    stages = stack.stages
    content = about(image_part(noise(710)))
    reference = stack.reference.ask(content)
    done = stages.prefill_content(content)
    forged = replace(done, kv_transfer_params={**done.kv_transfer_params, **wrong})
    reply = stages.decode_media(forged, DecodeForm.ZERO_EMBEDDING)
    assert reply.status >= 500 or reply.token_ids == reference.token_ids
    assert reply.status >= 500 or "remote_engine_id" not in wrong
    assert requests.get(stack.local.role("decode").url + "/health", timeout=10).status_code == 200
    assert stack.router().ask(content).token_ids == reference.token_ids


def test_a_client_that_leaves_frees_decode_and_prefill(qwen):
    stack = qwen()
    decode, prefill = stack.engine("decode"), stack.engine("prefill")
    router = stack.router()
    body = router.body(about(image_part(noise(720))), stream=True, max_tokens=800, ignore_eos=True)
    with router.post("/v1/chat/completions", body, stream=True) as response:
        next(response.iter_content(64))
    eventually(lambda: decode.metric("vllm:num_requests_running") == 0, 10, "decode stops generating")
    generated = decode.metric("vllm:generation_tokens_total")
    time.sleep(1)
    assert decode.metric("vllm:generation_tokens_total") == generated
    eventually(
        lambda: prefill.metric("vllm:kv_cache_usage_perc") == 0,
        KV_LEASE_SECONDS + 5,
        "prefill frees its blocks",
    )


def test_a_client_that_leaves_during_prefill_leaves_nothing_behind(qwen):
    stack = qwen()
    prefill, decode = stack.engine("prefill"), stack.engine("decode")
    router = stack.router()
    for seed in range(4):
        body = router.body(about(image_part(noise(730 + seed, 140, 140))), max_tokens=600, ignore_eos=True)
        with pytest.raises(requests.exceptions.Timeout):
            router.post("/v1/chat/completions", body, timeout=0.05 * (seed + 1))
    eventually(lambda: decode.metric("vllm:num_requests_running") == 0, 10, "decode is idle")
    eventually(
        lambda: prefill.metric("vllm:kv_cache_usage_perc") == 0,
        KV_LEASE_SECONDS + 5,
        "prefill frees its blocks",
    )


@pytest.mark.case("c24", "x05")
@pytest.mark.parametrize("role", ["decode", "prefill", "encode"])
def test_killing_an_engine_under_load(qwen, questions, role):
    stack = qwen()
    references = stack.reference.ask_all(questions, at_once=4)
    router = stack.router()
    before, retried = router.metric("mmdisagg_router_requests_total"), second_chances(router)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(ask, router, content, n % 2 == 0) for n, content in enumerate(questions)]
        eventually(
            lambda: router.metric("mmdisagg_router_requests_total") >= before + 2,
            60,
            "two requests have ended",
        )
        stack.local.role(role).kill()
        answers = [future.result(DEADLINE_SECONDS) for future in running]
    for answer, reference in zip(answers, references, strict=True):
        assert answer.status == 200 or answer.status in ERRORS
        assert answer.status != 200 or answer.token_ids == reference.token_ids
    assert any(answer.status in ERRORS for answer in answers) or second_chances(router) > retried
    stack.local.role(role).restart()
    stack.local.role(role).wait_ready(240)
    eventually(
        lambda: requests.get(router.url + "/ready", timeout=10).status_code == 200, 60, "the router is ready"
    )
    again = router.ask_all(questions[:6], at_once=2)
    assert [a.status for a in again] == [200] * 6, next(a.body for a in again if a.status != 200)
    assert [a.token_ids for a in again] == [r.token_ids for r in references[:6]]


def ask(router, content, streaming: bool) -> Answer:
    """One request; a broken connection counts as an explicit error."""
    try:
        return router.stream(content) if streaming else router.ask(content)
    except requests.exceptions.ConnectionError:
        return Answer(502)


def second_chances(router) -> float:
    """How often the router has sent something again."""
    return sum(router.metric(f"mmdisagg_router_{what}_total") for what in ("retries", "re_encodes"))
