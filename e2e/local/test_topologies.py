"""The other topologies with Qwen2.5-VL: the same tokens, whichever roles a deployment has."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import pytest
from picture_server import PICTURE
from pictures import WORDS_FOR_TWO_BLOCKS, about, image_part, noise, text_part, video_part
from stack import ALLOWED_HOST
from stages import SAME_FOR_ALL, without_identity
from test_qwen2_5_vl import assert_same, solid

from mmdisagg_cli.scenes import filler, question
from mmdisagg_workers.contract import DecodeForm

MEDIA = {"allowedHosts": [ALLOWED_HOST], "allowPrivateNetworks": True}
FETCHES = {"E/PD": "encode", "EP/D": "prefill", "PD": "decode"}


def workload():
    rng = random.Random(77)
    contents = [question(rng, 1 + n % 3, WORDS_FOR_TWO_BLOCKS).content() for n in range(6)]
    contents += [about(image_part(noise(n, 56 + 28 * n, 84)), words=20, seed=n) for n in range(2)]
    contents += [about(video_part(n)) for n in range(2)]
    contents += [[text_part("What is in the image?")]]
    return contents


def twins(topic: str):
    """Two messages that differ in their picture alone, and the pictures in their colour alone."""
    words = filler(random.Random(topic), 60)
    return [about(image_part(solid(c)), text=f"What is in the image?\n{words}") for c in ("red", "blue")]


@pytest.fixture(scope="module", params=list(FETCHES))
def stack(request, stacks, shapes):
    """E/PD hands embeddings on through a shared volume; E/P/D's own tests do it over TCP."""
    volume = {"handoff": {"embedding": "SharedVolume"}} if request.param == "E/PD" else {}
    return stacks.get(shapes, request.param, media=MEDIA, **volume)


@pytest.fixture
def topology(stack):
    return stack.topology


@pytest.fixture(scope="module")
def references(stack):
    return stack.reference.ask_all(workload(), at_once=4, ignore_eos=True)


def test_answers_are_token_identical_to_the_aggregated_engine(stack, references):
    assert len({tuple(r.token_ids) for r in references}) == len(references)
    assert_same(stack.router().ask_all(workload(), ignore_eos=True), references)


def test_streamed_answers_are_the_same(stack, references):
    assert_same(stack.router().stream_all(workload(), ignore_eos=True), references)


@pytest.mark.case("c02")
def test_two_pictures_of_one_size_get_their_own_answers(stack):
    first, second = twins("c02")
    references = stack.reference.ask_all([first, second])
    assert references[0].token_ids != references[1].token_ids
    answers = [stack.router().ask(c) for c in (first, second, first)]
    assert_same(answers, [*references, references[0]])


@pytest.mark.case("t03")
def test_without_identities_one_picture_is_answered_as_another(stack, topology):
    """The negative control of the collision test: what each topology's identities prevent is really there."""
    wrong = {"E/PD": _named_alike_in_the_store, "EP/D": _named_alike_on_decode}
    if topology not in wrong:
        # The engine sees the pixels and names pictures itself; nobody else's name may reach it.
        named = {**image_part(solid("red")), "uuid": SAME_FOR_ALL}
        refused = stack.engine("decode").ask([named, text_part("What is in the image?")])
        assert refused.status == 400
        assert "uuid" in refused.error
        return
    contents = twins("t03")
    right = stack.reference.ask_all(contents)
    answers = wrong[topology](stack, contents)
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].token_ids == right[0].token_ids
    assert answers[1].token_ids == right[0].token_ids != right[1].token_ids


def _named_alike_on_decode(stack, contents):
    stages = stack.stages
    form = DecodeForm.METADATA_ONLY
    return [stages.decode_media(stages.prefill_picture(c), form, without_identity) for c in contents]


def _named_alike_in_the_store(stack, contents):
    answers = []
    for content in contents:
        medium, _ = stack.stages.encode_medium(content[0])
        file = stack.embedding_store / f"{medium.identity}.safetensors"
        shutil.copy(file, file.with_stem(SAME_FOR_ALL))
        answers.append(stack.stages.answer_embedded(content, without_identity(medium)))
    return answers


@pytest.mark.parametrize("stack", ["E/PD"], indirect=True)
def test_where_the_identity_names_the_embedding_one_without_an_embedding_is_an_error(stack):
    """What protects E/PD: an identity that was left out finds nothing, and another's finds another picture."""
    first, second = twins("named")
    stages = stack.stages
    (red, _), (blue, _) = (stages.encode_medium(content[0]) for content in (first, second))
    unnamed = stages.answer_embedded(first, replace(red, identity="1" * 64))
    assert unnamed.status == 500, unnamed.body
    references = stack.reference.ask_all([first, second])
    assert stages.answer_embedded(second, blue).token_ids == references[1].token_ids
    assert stages.answer_embedded(second, red).token_ids == references[0].token_ids


@pytest.mark.case("x01", "t07")
@pytest.mark.parametrize("stack", ["E/PD"], indirect=True)
def test_an_embedding_that_is_gone_from_the_volume_is_encoded_again_and_decode_lives(stack):
    content = about(image_part(noise(700)))
    reference = stack.reference.ask(content, ignore_eos=True)
    medium, _ = stack.stages.encode_medium(content[0])
    for file in stack.embedding_store.iterdir():
        file.unlink()
    reply = stack.stages.answer_embedded(content, medium)
    assert reply.status == 500, reply.body
    assert_same([stack.router().ask(content, ignore_eos=True)], [reference])


@pytest.mark.case("c11")
def test_a_picture_url_is_fetched_once_by_the_role_that_the_topology_names(stack, topology, web):
    path = f"/{topology.replace('/', '-')}.png"
    asked = text_part("What is in the image?")
    linked = {"type": "image_url", "image_url": {"url": web.url + path}}
    reference = stack.reference.ask([image_part(PICTURE), asked])
    assert_same([stack.router().ask([linked, asked])], [reference])
    assert web.sessions[path] == [stack.local.role(FETCHES[topology]).process.pid]


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
    smaller = {"mm_processor_kwargs": {"max_pixels": 3136}, "ignore_eos": True}
    plain = stack.reference.ask(content, ignore_eos=True)
    changed = stack.reference.ask(content, **smaller)
    assert changed.prompt_token_ids != plain.prompt_token_ids
    assert_same([stack.router().ask(content, **smaller)], [changed])
    assert_same([stack.router().ask(content, ignore_eos=True)], [plain])
