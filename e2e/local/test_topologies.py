"""The other topologies with Qwen2.5-VL: the same tokens, whichever roles a deployment has."""

from __future__ import annotations

import random

import pytest
from pictures import WORDS_FOR_TWO_BLOCKS, about, image_part, noise, text_part, video_part
from stack import ALLOWED_HOST
from test_qwen2_5_vl import assert_same, solid

from mmdisagg_cli.scenes import question

MEDIA = {"allowedHosts": [ALLOWED_HOST], "allowPrivateNetworks": True}


def workload():
    rng = random.Random(77)
    contents = [question(rng, 1 + n % 3, WORDS_FOR_TWO_BLOCKS).content() for n in range(6)]
    contents += [about(image_part(noise(n, 56 + 28 * n, 84)), words=20, seed=n) for n in range(2)]
    contents += [about(video_part(n)) for n in range(2)]
    contents += [[text_part("What is in the image?")]]
    return contents


@pytest.fixture(scope="module", params=["E/PD", "EP/D", "PD"])
def stack(request, stacks, shapes):
    return stacks.get(shapes, request.param, media=MEDIA)


@pytest.fixture(scope="module")
def references(stack):
    return stack.reference.ask_all(workload(), at_once=4, ignore_eos=True)


def test_answers_are_token_identical_to_the_aggregated_engine(stack, references):
    assert len({tuple(r.token_ids) for r in references}) == len(references)
    assert_same(stack.router().ask_all(workload(), at_once=4, ignore_eos=True), references)


def test_streamed_answers_are_the_same(stack, references):
    assert_same([stack.router().stream(c, ignore_eos=True) for c in workload()[:3]], references[:3])


@pytest.mark.case("c02")
def test_two_pictures_of_one_size_get_their_own_answers(stack):
    contents = [
        about(image_part(solid(c)), words=60, text="What is in the image?") for c in ("red", "blue", "red")
    ]
    references = stack.reference.ask_all(contents[:2])
    assert_same([stack.router().ask(c) for c in contents], [*references, references[0]])


@pytest.mark.case("c25")
@pytest.mark.parametrize("part", [{"uuid": "0" * 64}, {"uuid": "../../x"}])
def test_a_clients_identity_is_refused_in_every_topology(stack, part):
    reply = stack.router().ask(about({**image_part(noise(1)), **part}))
    assert reply.status == 400


@pytest.mark.case("c25")
def test_embeddings_of_clients_are_refused_in_every_topology(stack):
    part = {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 4, 4]}}
    assert stack.router().ask(about(part)).status == 400


@pytest.mark.case("c17")
@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest", "file:///etc/passwd", "http://10.0.0.1/a.png"]
)
def test_private_urls_are_refused_in_every_topology(stack, url):
    assert stack.router().ask(about({"type": "image_url", "image_url": {"url": url}})).status == 400


@pytest.mark.case("c25")
def test_processor_arguments_work_where_the_pixels_are(stack):
    content = about(image_part(noise(9, 112, 112)))
    plain = stack.reference.ask(content, ignore_eos=True)
    changed = stack.router().ask(content, mm_processor_kwargs={"max_pixels": 3136}, ignore_eos=True)
    assert changed.status == 200, changed.body
    assert changed.usage["prompt_tokens"] < plain.usage["prompt_tokens"]
    assert stack.router().ask(content, ignore_eos=True).token_ids == plain.token_ids


def test_the_wrong_picture_would_be_noticed(stack):
    """The negative control: with the pictures exchanged the same comparison fails."""
    first, second = (about(image_part(solid(c)), text="What is in the image?") for c in ("red", "blue"))
    assert stack.router().ask(first).token_ids != stack.reference.ask(second).token_ids
