"""The other model families through encode, prefill and decode, with random weights: tokens, not sense."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pictures import about, image_part, noise, text_part, video_part
from stages import SAME_FOR_ALL, reshaped, without_identity
from test_qwen2_5_vl import assert_same

from mmdisagg_workers.contract import DecodeForm

SIZES = [(56, 56), (56, 56), (84, 56), (112, 84), (60, 100), (140, 84)]
FORMS = {
    "qwen2-vl": (DecodeForm.ZERO_EMBEDDING, DecodeForm.METADATA_ONLY),
    "qwen3-vl": (DecodeForm.ZERO_EMBEDDING, DecodeForm.METADATA_ONLY),
    "llava": (DecodeForm.EXPANDED_PROMPT, DecodeForm.ZERO_EMBEDDING),
}
SQUARE = {"qwen2-vl": (112, 112), "qwen3-vl": (128, 128)}
"""Sizes of 8 by 8 patches."""
LONG = 60
"""Filler words: prompts of several KV blocks of 32 tokens."""


def workload(family: str):
    contents = [
        about(image_part(noise(n, *size)), words=LONG * (n % 2), seed=n) for n, size in enumerate(SIZES)
    ]
    contents += [
        about(image_part(noise(20 + n)), text_part(" and "), image_part(noise(30, 84, 112))) for n in range(2)
    ]
    if family != "llava":
        contents += [about(video_part(n)) for n in range(2)]
        contents += [about(video_part(9), image_part(noise(40)), words=LONG)]
    return contents


@pytest.fixture(scope="module", params=list(FORMS))
def family(request):
    return request.param


@pytest.fixture(scope="module")
def stack(family, stacks, tiny):
    return stacks.get(tiny(family), "E/P/D")


@pytest.fixture(scope="module")
def references(stack, family):
    return stack.reference.ask_all(workload(family), at_once=4, ignore_eos=True)


@pytest.fixture(params=[0, 1])
def form(request, family):
    return FORMS[family][request.param]


def test_answers_are_token_identical_to_the_aggregated_engine(stack, family, references, form):
    assert len(references) >= 8
    assert len({tuple(r.token_ids) for r in references}) == len(references)
    router = stack.router(form)
    assert_same(router.ask_all(workload(family), at_once=4, ignore_eos=True), references)
    assert_same([router.stream(c, ignore_eos=True) for c in workload(family)[-2:]], references[-2:])


@pytest.mark.case("c02", "t03", "t04")
def test_two_pictures_of_one_size_get_their_own_answers_and_the_first_again_hits_the_cache(stack, form):
    words = LONG + 1 + len(form)
    contents = [about(image_part(noise(n)), text="describe this", words=0) for n in (50, 51, 50)]
    tail = text_part(" ".join(["the same long text after the picture"] * 12 + [str(words)]))
    contents = [[*content, tail] for content in contents]
    references = stack.reference.ask_all(contents[:2], ignore_eos=True)
    assert references[0].token_ids != references[1].token_ids
    router, decode = stack.router(form), stack.engine("decode")
    answers = [router.ask(content, ignore_eos=True) for content in contents[:2]]
    before = decode.metric("vllm:prefix_cache_hits_total")
    answers.append(router.ask(contents[2], ignore_eos=True))
    assert_same(answers, [*references, references[0]])
    assert decode.metric("vllm:prefix_cache_hits_total") > before


@pytest.mark.case("t03", "t04")
def test_without_identity_or_salt_decode_answers_with_another_picture(stack, family, form):
    """The negative control of the collision test."""
    tail = text_part(" ".join(["a collision in the making"] * 16 + [form]))
    stages = stack.stages
    contents = [[image_part(noise(n)), tail] for n in (60, 61)]
    references = stack.reference.ask_all(contents, ignore_eos=True)
    answers = []
    for content in contents:
        done = stages.prefill_content(content)
        if form is DecodeForm.EXPANDED_PROMPT:
            answers.append(stages.decode_tokens(done, SAME_FOR_ALL, ignore_eos=True))
        else:
            answers.append(stages.decode_media(done, form, without_identity, ignore_eos=True))
    assert [a.status for a in answers] == [200, 200]
    assert answers[0].token_ids == references[0].token_ids
    assert answers[1].token_ids != references[1].token_ids


@pytest.mark.case("t05", "t06")
def test_wrong_geometry_shows(stack, family):
    """The negative control of positions: a reshaped grid, or one row more where there is no grid."""
    stages = stack.stages
    if family == "llava":
        done = stages.prefill_content(about(image_part(noise(70))))
        one_more = lambda m: without_identity(replace(m, tokens=m.tokens + 1))  # noqa: E731
        altered = stages.decode_media(done, DecodeForm.ZERO_EMBEDDING, one_more)
        assert altered.prompt_token_ids != done.prompt_token_ids
        return
    differs = 0
    for seed in range(4):
        content = about(image_part(noise(70 + seed, *SQUARE[family])))
        reference = stack.reference.ask(content, ignore_eos=True)
        done = stages.prefill_content(content)
        moved = lambda m: without_identity(reshaped(m))  # noqa: E731
        altered = stages.decode_media(done, DecodeForm.METADATA_ONLY, moved, ignore_eos=True)
        differs += altered.token_ids != reference.token_ids
    assert differs


@pytest.mark.case("t08")
def test_expanded_ids_without_prefills_blocks_are_refused(stack, family):
    done = stack.stages.prefill_content(about(image_part(noise(80))))
    decode = stack.engine("decode")
    body = {"model": "m", "prompt": done.prompt_token_ids, "max_tokens": 4}
    salt, kv = {"cache_salt": "a"}, {"kv_transfer_params": done.kv_transfer_params}
    lacking = {"kv_transfer_params": salt, "cache_salt": kv} if family == "llava" else {"grid": salt | kv}
    for missing, fields in lacking.items():
        refused = decode.post("/v1/completions", body | fields)
        assert refused.status_code == 400, refused.text
        assert missing in refused.json()["error"]["message"]


@pytest.mark.case("c19")
def test_embeddings_are_as_wide_as_the_vision_tower_makes_them(stack, family):
    assert stack.info("decode").geometry.embedding_width == {"qwen3-vl": 512}.get(family, 128)


@pytest.mark.case("c21")
def test_a_family_takes_videos_or_says_that_it_does_not(stack, family):
    reply = stack.router().ask(about(video_part(1)))
    assert reply.status == (400 if family == "llava" else 200)
    assert ("video" in reply.error) == (family == "llava")


@pytest.mark.case("c07")
def test_text_parts_are_the_same_as_a_string(stack):
    answers = [
        stack.router().ask(c, ignore_eos=True)
        for c in ("describe this image", [text_part("describe this image")])
    ]
    assert_same(answers, [stack.reference.ask("describe this image", ignore_eos=True)] * 2)


def test_families_of_the_api_and_of_the_contract_are_the_same():
    from mmdisagg_operator.api import Family
    from mmdisagg_workers.contract import FAMILIES

    assert {f.value for f in Family} - {"Auto"} == set(FAMILIES)
