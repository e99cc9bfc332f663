"""Embeddings over TCP with real engines: the same tokens, and nothing lost when stores are small or peers die."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import requests
from chat import Server
from pictures import WORDS_FOR_TWO_BLOCKS, about, image_part, noise, video_part
from stack import ALLOWED_HOST, Stack, eventually
from test_qwen2_5_vl import assert_same

from mmdisagg_cli.scenes import question
from mmdisagg_workers.contract import family, prefill_part

MEDIA = {"allowedHosts": [ALLOWED_HOST], "allowPrivateNetworks": True}
REMOTE_DECODE = {"do_remote_decode": True, "do_remote_prefill": False}
EMBEDDING_BYTES = 16 * 128 * 4
"""One picture of 112 x 112 pixels: 16 tokens of the trained model, float32."""
ROOM_FOR_THREE = str(3 * EMBEDDING_BYTES)
REQUESTS = 200 if os.environ.get("MMDISAGG_LONG") else 40


@pytest.fixture(scope="module")
def answered(qwen):
    """What the aggregated engine answers, kept while another deployment, without one, is tested."""
    contents = [*workload(), *repeated(10, 10), unseen(), *in_flight()]
    answers = qwen().reference.ask_all(contents, at_once=4, ignore_eos=True)
    return dict(zip(map(json.dumps, contents), answers, strict=True))


@pytest.fixture
def stack(qwen, answered) -> Stack:
    """Encode, prefill and decode, room for everything."""
    return qwen()


@pytest.fixture
def crowded(stacks, shapes, answered) -> Stack:
    """Two encode and two decode engines, each with room for three pictures."""
    two = {"replicas": 2}
    handoff = {"tcp": {"capacity": ROOM_FOR_THREE}}
    return stacks.get(shapes, "E/PD", reference=False, media=MEDIA, handoff=handoff, encode=two, decode=two)


def workload() -> list[Any]:
    rng = random.Random(55)
    contents = [question(rng, 1 + n % 3, WORDS_FOR_TWO_BLOCKS).content() for n in range(6)]
    contents += [about(image_part(noise(n, 56 + 28 * n, 84)), words=20, seed=n) for n in range(2)]
    return [*contents, about(video_part(3))]


def repeated(pictures: int, count: int, first: int = 900) -> list[Any]:
    """Questions about a few pictures in turn; the words before a picture keep the prefix cache out."""
    return [
        about(image_part(noise(first + n % pictures, 112, 112)), words=40, seed=n, text="describe this")
        for n in range(count)
    ]


def unseen() -> list[Any]:
    """A question about a picture that no other test asks about."""
    return about(image_part(noise(777, 112, 112)), words=40, seed=77)


def in_flight() -> list[Any]:
    """Questions about pictures that no other test asks about, to be asked all at once."""
    return repeated(8, 8, first=1300)


def sent(server: Server, name: str) -> float:
    return server.metric(f"mmdisagg_embedding_{name}_total")


def leg(stages, medium, **fields: Any):
    """The prefill leg of one medium, with fields of the test's own."""
    parts = [prefill_part(family(stages.info.family), stages.info, medium), {"type": "text", "text": "what"}]
    return stages.prefill.ask(parts, max_tokens=1, kv_transfer_params=REMOTE_DECODE, **fields)


def alive(stack: Stack, role: str) -> bool:
    return requests.get(stack.local.role(role).url + "/health", timeout=10).status_code == 200


def test_answers_are_token_identical_to_the_aggregated_engine(stack, answered):
    encode, prefill = stack.engine("encode"), stack.engine("prefill")
    before = sent(prefill, "fetched_bytes")
    answers = stack.router().ask_all(workload(), at_once=4, ignore_eos=True)
    assert_same(answers, [answered[json.dumps(content)] for content in workload()])
    assert sent(prefill, "fetched_bytes") > before
    assert sent(prefill, "loads") >= sent(prefill, "misses") > 0
    assert sent(encode, "published") > 0


def test_the_wrong_picture_would_be_noticed(stack, answered):
    """The negative control: the answers that are compared differ (two scenes may happen to be alike)."""
    assert len({tuple(a.token_ids) for a in answered.values()}) >= len(answered) - 2


def test_a_picture_is_encoded_and_fetched_once_however_often_it_is_asked_about(stack):
    encode, prefill = stack.engine("encode"), stack.engine("prefill")
    contents = repeated(1, 50, first=1900)
    encodes, misses = encode.metric("vllm:request_success_total"), sent(prefill, "misses")
    assert [a.status for a in stack.router().ask_all(contents[:1])] == [200]
    hits = sent(prefill, "hits")
    assert [a.status for a in stack.router().ask_all(contents[1:], at_once=4)] == [200] * 49
    assert encode.metric("vllm:request_success_total") - encodes == 1
    assert sent(prefill, "misses") - misses == 1
    assert sent(prefill, "hits") > hits


def test_eight_pictures_and_a_picture_of_ten_megabytes(stack):
    eight = about(*(image_part(noise(500 + n, 56 + 28 * (n % 3), 84)) for n in range(8)))
    big = about(image_part(noise(520, 1900, 1800)))
    assert len(json.dumps(big)) > 10_000_000
    references = stack.reference.ask_all([eight, big], at_once=1, ignore_eos=True)
    assert_same(stack.router().ask_all([eight, big], ignore_eos=True), references)


@pytest.mark.case("t07", "t09", "x01")
@pytest.mark.parametrize("wrong", ["dead port", "foreign port", "absent", "no place", "no address"])
def test_an_embedding_that_cannot_be_had_is_an_error_never_wrong_text_and_prefill_lives(stack, wrong):
    stages = stack.stages
    content = image_part(noise(600 + len(wrong), 84, 84))
    medium, params = stages.encode_medium(content)
    entry = params[medium.identity]
    change = {
        "dead port": {"peer_port": 1},
        "foreign port": {"peer_port": stack.local.role("encode").port},
        "absent": {},
        "no place": {"peer_host": None},
        "no address": {"peer_host": "localhost"},
    }[wrong]
    if wrong == "absent":
        absent = "0" * 63 + "a"
        medium, params = type(medium)(**{**vars(medium), "identity": absent}), {absent: entry}
    else:
        params = {medium.identity: {**entry, **change}}
    reply = leg(stages, medium, ec_transfer_params=params)
    assert reply.status == 500, reply.body
    assert alive(stack, "prefill")
    reference = stack.reference.ask(about(content), ignore_eos=True)
    assert_same([stack.router().ask(about(content), ignore_eos=True)], [reference])


@pytest.mark.case("t11")
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_engines_that_take_metadata_never_take_the_raw_picture(stack, role):
    content = about(image_part(noise(610)))
    assert stack.router().ask(content).status == 200
    assert stack.engine(role).ask(content).status == 400


def test_foreign_bytes_on_the_port_are_refused_and_encode_lives(stack):
    _, params = stack.stages.encode_medium(image_part(noise(620)))
    (entry,) = params.values()
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", random.Random(1).randbytes(500), b"mmdisagg" + bytes(66)):
        with socket.create_connection((entry["peer_host"], entry["peer_port"]), timeout=10) as foreign:
            foreign.sendall(data)
            foreign.shutdown(socket.SHUT_WR)
            assert len(received(foreign)) == 42  # the greeting, and nothing after it
    assert alive(stack, "encode")
    assert stack.router().ask(about(image_part(noise(621)))).status == 200
    assert sent(stack.engine("encode"), "refused_connections") >= 4


def received(sock: socket.socket) -> bytes:
    data = b""
    try:
        while chunk := sock.recv(1 << 16):
            data += chunk
    except ConnectionResetError:
        pass
    return data


@pytest.mark.case("x05")
def test_a_restarted_prefill_fetches_what_encode_still_has(stack, answered):
    content = workload()[0]
    prefill, encode = stack.local.role("prefill"), stack.engine("encode")
    assert stack.router().ask(content, ignore_eos=True).status == 200
    prefill.kill()
    prefill.restart()
    prefill.wait_ready(240)
    wait_ready(stack)
    encoded = encode.metric("vllm:request_success_total")
    assert_same([stack.router().ask(content, ignore_eos=True)], [answered[json.dumps(content)]])
    assert encode.metric("vllm:request_success_total") == encoded


def test_two_engines_that_want_one_embedding_both_get_it(crowded, answered):
    stages = e_pd_stages(crowded)
    medium, params = stages.encode_medium(image_part(noise(630, 112, 112)))
    parts = [
        prefill_part(family(stages.info.family), stages.info, medium),
        {"type": "text", "text": "describe this"},
    ]
    engines = [crowded.engine("decode-0"), crowded.engine("decode-1")] * 4
    with ThreadPoolExecutor(8) as pool:
        replies = list(
            pool.map(lambda engine: engine.ask(parts, ec_transfer_params=params, ignore_eos=True), engines)
        )
    assert [reply.status for reply in replies] == [200] * 8
    assert len({tuple(reply.token_ids) for reply in replies}) == 1


def e_pd_stages(stack: Stack):
    from stages import Stages

    return Stages(
        stack.engine("encode-0"), stack.engine("decode-0"), stack.engine("decode-1"), stack.info("decode-0")
    )


def test_a_store_smaller_than_the_working_set_loses_no_request(crowded, answered):
    router = crowded.router()
    encodes = [crowded.engine(f"encode-{n}") for n in range(2)]
    decodes = [crowded.engine(f"decode-{n}") for n in range(2)]
    again = router.metric("mmdisagg_router_re_encodes_total")
    lost = sum(sent(engine, "missing") for engine in decodes)
    contents = repeated(10, REQUESTS)
    answers = router.ask_all(contents, at_once=2, ignore_eos=True)
    assert [a.status for a in answers] == [200] * REQUESTS, next(a.body for a in answers if a.status != 200)
    assert_same(answers[:10], [answered[json.dumps(content)] for content in contents[:10]])
    assert sum(sent(engine, "evictions") for engine in (*encodes, *decodes)) > 0
    re_encodes = router.metric("mmdisagg_router_re_encodes_total") - again
    assert re_encodes == sum(sent(engine, "missing") for engine in decodes) - lost
    assert re_encodes > 0


def test_more_requests_in_flight_than_encode_has_room_for_lose_nothing(crowded):
    """New pictures only, eight at once, room for three: what was reported is kept until it is fetched."""
    router = crowded.router()
    decodes = [crowded.engine(f"decode-{n}") for n in range(2)]
    again = router.metric("mmdisagg_router_re_encodes_total")
    lost = sum(sent(engine, "missing") for engine in decodes)
    contents = [about(image_part(noise(1200 + n, 112, 112)), words=40, seed=n) for n in range(24)]
    answers = router.ask_all(contents, at_once=8, ignore_eos=True)
    assert [a.status for a in answers] == [200] * 24, next(a.body for a in answers if a.status != 200)
    assert router.metric("mmdisagg_router_re_encodes_total") == again
    assert sum(sent(engine, "missing") for engine in decodes) == lost


def test_an_encode_engine_that_dies_between_the_legs_of_a_request_is_replaced_by_another(crowded, answered):
    """What the router does, by hand, so that encode dies exactly there."""
    content = unseen()
    (picture,) = (part for part in content if part["type"] == "image_url")
    stages = e_pd_stages(crowded)
    medium, params = stages.encode_medium(picture)
    crowded.local.role("encode-0").kill()
    lost = stages.answer_embedded(content, medium, params=params, ignore_eos=True)
    assert lost.status == 500, lost.body
    again, elsewhere = replace(stages, encode=crowded.engine("encode-1")).encode_medium(picture)
    assert again == medium
    found = stages.answer_embedded(content, again, params=elsewhere, ignore_eos=True)
    assert_same([found], [answered[json.dumps(content)]])
    crowded.local.role("encode-0").restart()
    crowded.local.role("encode-0").wait_ready(240)
    wait_ready(crowded)


def test_an_encode_engine_that_dies_with_requests_in_hand_costs_no_request(crowded, answered):
    """All of it but its HTTP server stands still first, so that it surely has some when it is killed."""
    role, router, contents = crowded.local.role("encode-0"), crowded.router(), in_flight()
    for process in crowded.processes("encode-0"):
        if process != role.process:
            os.kill(process.pid, signal.SIGSTOP)
    retries = router.metric("mmdisagg_router_retries_total")
    with ThreadPoolExecutor(len(contents)) as pool:
        running = [pool.submit(router.ask, content, ignore_eos=True) for content in contents]
        eventually(lambda: any(future.done() for future in running), 60, "the other engine serves")
        role.kill()
        answers = [future.result(60) for future in running]
    assert_same(answers, [answered[json.dumps(content)] for content in contents])
    assert router.metric("mmdisagg_router_retries_total") > retries
    role.restart()
    role.wait_ready(240)
    wait_ready(crowded)


def test_a_picture_whose_encode_engine_died_is_encoded_by_another(crowded, answered):
    content, *others = repeated(10, 10)
    router = crowded.router()
    assert router.ask(content, ignore_eos=True).status == 200
    for _ in range(2):  # push it out of the memory of both decode engines
        assert [a.status for a in router.ask_all(others, at_once=1)] == [200] * 9
    crowded.local.role("encode-0").kill()
    answers = [router.ask(content, ignore_eos=True), *router.ask_all(others[:4], ignore_eos=True)]
    assert_same(answers, [answered[json.dumps(c)] for c in (content, *others[:4])])


def wait_ready(stack: Stack, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while requests.get(stack.router().url + "/ready", timeout=10).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.25)
