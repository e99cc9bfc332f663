"""Qwen2.5-VL through encode, prefill and decode: token for token what one big engine answers."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import requests
from chat import TOKEN_HEADER, Answer
from pictures import WORDS_FOR_TWO_BLOCKS, about, image_part, noise, text_part, video_part
from stack import ROOT
from stages import reshaped, without_identity, without_timing

from mmdisagg_cli.scenes import filler, question, scene
from mmdisagg_workers.contract import DecodeForm

FORMS = [DecodeForm.ZERO_EMBEDDING, DecodeForm.METADATA_ONLY]
BLOCK = 32
both_forms = pytest.mark.parametrize("form", FORMS)


def workload():
    """44 messages: one to three pictures, mixed sizes and orders, text only; most span two full KV blocks."""
    rng = random.Random(20)
    contents = [question(rng, 1 + n % 3, WORDS_FOR_TWO_BLOCKS if n % 4 else 0).content() for n in range(36)]
    contents += [about(image_part(noise(n, 56 + 28 * n, 84)), words=50 * (n % 2), seed=n) for n in range(4)]
    contents += [[text_part(filler(random.Random(n), 60) + " What is in the image?")] for n in range(4)]
    return contents


def assert_same(answers: list[Answer], references: list[Answer]) -> None:
    assert [a.status for a in answers] == [200] * len(references), next(
        a.body for a in answers if a.status != 200
    )
    assert [a.token_ids for a in answers] == [r.token_ids for r in references]
    assert [a.prompt_token_ids for a in answers] == [r.prompt_token_ids for r in references]
    assert [a.text for a in answers] == [r.text for r in references]


@pytest.fixture(scope="module")
def references(qwen):
    return qwen().reference.ask_all(workload(), at_once=4, ignore_eos=True)


def test_the_reference_answers_about_pictures_are_pairwise_distinct(references):
    """So none can pass for another's: past its full stop the model goes on about what it has seen."""
    seen = [r for r, parts in zip(references, workload(), strict=True) if len(parts) > 1]
    assert len(seen) == 40
    assert len({tuple(r.token_ids) for r in seen}) == len(seen)


@both_forms
def test_every_answer_is_token_identical_to_the_aggregated_engine(qwen, references, form):
    stack = qwen()
    router, prefill, decode = stack.router(form), stack.engine("prefill"), stack.engine("decode")
    before = decode.metric("vllm:nixl_xfer_time_seconds_count")
    expired = prefill.metric("vllm:nixl_num_kv_expired_reqs_total")
    answers = router.ask_all(workload(), at_once=8, ignore_eos=True)
    assert_same(answers, references)
    assert len(answers) >= 40
    assert sum(len(a.prompt_token_ids) >= 2 * BLOCK for a in answers) >= len(answers) / 2
    assert decode.metric("vllm:nixl_xfer_time_seconds_count") > before
    assert prefill.metric("vllm:nixl_num_kv_expired_reqs_total") == expired


@both_forms
def test_streamed_answers_are_the_same_tokens(qwen, references, form):
    streamed = qwen().router(form).stream_all(workload(), at_once=8, ignore_eos=True)
    assert_same(streamed, references)
    for answer, reference in zip(streamed, references, strict=True):
        assert answer.usage["completion_tokens"] == reference.usage["completion_tokens"]
        assert answer.usage["prompt_tokens"] == reference.usage["prompt_tokens"]


@both_forms
def test_one_embedding_load_per_picture_and_one_kv_transfer_per_request(qwen, form):
    stack = qwen()
    router, encode, prefill, decode = stack.router(form), *map(stack.engine, ("encode", "prefill", "decode"))
    rng = random.Random(f"31 {form}")
    contents = [question(rng, pictures, 20).content() for pictures in (1, 2, 3)]

    def counts():
        return (
            encode.metric("vllm:request_success_total"),
            prefill.metric("mmdisagg_embedding_loads_total"),
            decode.metric("vllm:nixl_xfer_time_seconds_count"),
        )

    before = counts()
    assert all(a.status == 200 for a in router.ask_all(contents, at_once=1))
    deadline = time.monotonic() + 20
    while (delta := tuple(a - b for a, b in zip(counts(), before, strict=True))) != (6, 6, 3):
        assert time.monotonic() < deadline, delta
        time.sleep(0.5)


@pytest.mark.case("c02")
@both_forms
def test_two_pictures_of_one_size_get_their_own_answers_and_the_first_one_again_hits_the_cache(qwen, form):
    stack = qwen()
    router, decode = stack.router(form), stack.engine("decode")
    words = filler(random.Random(f"c02 {form}"), 60)
    first, second = (solid(colour) for colour in ("red", "blue"))
    contents = [about(image_part(p), text=f"What is in the image?\n{words}") for p in (first, second, first)]
    references = stack.reference.ask_all(contents[:2])
    assert references[0].token_ids != references[1].token_ids
    answers = [router.ask(content) for content in contents[:2]]
    hits = decode.metric("vllm:prefix_cache_hits_total")
    answers.append(router.ask(contents[2]))
    assert_same(answers, [*references, references[0]])
    assert "red" in answers[0].text
    assert "blue" in answers[1].text
    assert decode.metric("vllm:prefix_cache_hits_total") - hits >= BLOCK
    assert answers[2].cached_tokens > 0


@pytest.mark.case("t03")
@both_forms
def test_without_identities_decode_answers_with_another_picture(qwen, form):
    """The negative control of the collision tests: the fault that identities prevent is really there."""
    stages = qwen().stages
    words = filler(random.Random(f"t03 {form}"), 60)
    contents = [about(image_part(solid(c)), text=f"What is in the image?\n{words}") for c in ("red", "blue")]
    wrong = [stages.decode_media(stages.prefill_content(c), form, without_identity) for c in contents]
    assert [a.status for a in wrong] == [200, 200]
    assert wrong[1].text == wrong[0].text


@pytest.mark.case("t05")
@both_forms
def test_a_reshaped_grid_moves_every_later_token(qwen, form):
    """The negative control of positions: the grid is not decoration.

    The trained model is too sure of its words to change them, so their probabilities are compared.
    """
    stack = qwen()
    stages = stack.stages
    content = about(image_part(noise(50, 112, 112)), words=30)
    reference = probabilities(stack.reference.ask(content, logprobs=True))
    right = stages.decode_media(stages.prefill_content(content), form, logprobs=True)
    assert probabilities(right) == pytest.approx(reference, abs=1e-4)
    done = stages.prefill_content(content)
    wrong = stages.decode_media(done, form, lambda m: without_identity(reshaped(m)), logprobs=True)
    assert wrong.status == 200
    assert probabilities(wrong) != pytest.approx(reference, abs=1e-3)


@pytest.mark.case("t05")
def test_a_grid_of_another_size_is_caught_by_the_prompt_ids(qwen):
    """What the router compares: decode's prompt ids differ from prefill's when the grid has another size."""
    stages = qwen().stages
    done = stages.prefill_content(about(image_part(noise(60, 112, 112))))
    altered = stages.decode_media(done, DecodeForm.METADATA_ONLY, lambda m: replace(m, grid=(1, 4, 4)))
    assert altered.prompt_token_ids != done.prompt_token_ids


@pytest.mark.case("c21", "t10")
@both_forms
def test_videos_alone_and_beside_a_picture(qwen, form):
    stack = qwen()
    contents = [about(video_part(n)) for n in range(4)]
    contents += [about(image_part(noise(n)), text_part(" and "), video_part(n + 10)) for n in range(2)]
    contents += [about(video_part(n + 20), image_part(noise(n + 3, 84, 56)), words=20) for n in range(2)]
    references = stack.reference.ask_all(contents, at_once=2, ignore_eos=True)
    assert len({tuple(r.token_ids) for r in references}) == len(contents)
    assert_same(stack.router(form).ask_all(contents, at_once=2, ignore_eos=True), references)


@pytest.mark.case("t10")
def test_a_video_decoded_without_its_timing_is_wrong(qwen):
    """The negative control of the timing field."""
    stack = qwen()
    stages = stack.stages
    differs = 0
    for seed in range(40, 44):
        content = about(video_part(seed, frames=8))
        reference = stack.reference.ask(content, ignore_eos=True)
        done = stages.prefill_content(content, without_timing)
        altered = stages.decode_media(done, DecodeForm.METADATA_ONLY, without_timing, ignore_eos=True)
        differs += altered.status == 200 and altered.token_ids != reference.token_ids
    assert differs


def test_the_committed_weights_are_small_and_right_without_any_of_this():
    """97 of 100 through transformers alone, as the model card states."""
    assert (ROOT / "models/shapes/model.safetensors").stat().st_size < 10_000_000
    script = [sys.executable, str(ROOT / "models/evaluate_shapes.py")]
    assert subprocess.run(script, check=False).returncode == 0


def test_the_trained_model_answers_right_through_the_router(qwen):
    lines = (ROOT / "models/shapes/evaluation/questions.jsonl").read_text().splitlines()
    questions = [json.loads(line) for line in lines]
    answers = qwen().router().ask_all([q["content"] for q in questions], return_token_ids=None)
    right = sum(a.text.strip() == q["answer"] for a, q in zip(answers, questions, strict=True))
    assert len(questions) == 100
    assert right >= 95


@pytest.mark.case("c07")
def test_text_alone_may_be_a_string_or_a_list_of_parts(qwen):
    stack = qwen()
    reference = stack.reference.ask("What is in the image?")
    for content in ("What is in the image?", [text_part("What is in the image?")]):
        assert_same([stack.router().ask(content)], [reference])


def test_text_completions(qwen):
    stack = qwen()
    body = {"model": "m", "prompt": "What is in the image?", "temperature": 0, "max_tokens": 8}
    answers = [
        s.post("/v1/completions", body).json()["choices"][0]["text"]
        for s in (stack.router(), stack.reference)
    ]
    assert answers[0] == answers[1]


@pytest.mark.case("c20")
def test_encode_holds_vision_weights_only(qwen):
    encode, decode = (weights(qwen().engine(role)) for role in ("encode", "decode"))
    assert set(encode) == {"visual"}
    assert encode["visual"] == decode["visual"] > 0
    assert decode["language_model"] > 0


def weights(engine) -> dict[str, int]:
    """Bytes of the loaded parameters per module of the model."""
    headers = {TOKEN_HEADER: engine.token}
    reply = requests.get(engine.url + "/mmdisagg/v1/weights", headers=headers, timeout=30)
    return reply.json()["ranks"][0]


def probabilities(answer: Answer) -> list[float]:
    """The log probability of each token of an answer."""
    assert answer.status == 200, answer.body
    return [token["logprob"] for token in answer.body["choices"][0]["logprobs"]["content"]]


def solid(colour: str):
    """A picture with one thing of a colour, always of the same size."""
    rng = random.Random(colour)
    while True:
        drawn = scene(rng, things=1)
        if drawn.answer.split()[1] == colour and drawn.picture.size == (112, 112):
            return drawn.picture
