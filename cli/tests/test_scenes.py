"""Scenes: deterministic, of every size, and told apart by their answers."""

import base64
import io
import random

import pytest
from PIL import Image

from mmdisagg_cli import scenes


def test_the_same_seed_gives_the_same_question() -> None:
    first, second = (scenes.question(random.Random(5), pictures=2, filler_words=20) for _ in range(2))

    assert first == second
    assert first != scenes.question(random.Random(6), pictures=2, filler_words=20)


def test_pictures_are_56_to_140_pixels_and_not_only_multiples_of_28() -> None:
    rng = random.Random(0)

    sizes = [scenes.scene(rng).picture.size for _ in range(200)]

    assert all(56 <= side <= 140 for size in sizes for side in size)
    assert any(width != height for width, height in sizes)
    assert any(side % 28 for size in sizes for side in size)
    assert any(width % 28 == height % 28 == 0 for width, height in sizes)


def test_every_thing_lies_inside_its_picture_and_shows_its_colour_in_the_middle() -> None:
    rng = random.Random(1)

    for shown in (scenes.scene(rng) for _ in range(200)):
        for thing in shown.things:
            left, top, right, bottom = thing.box
            assert 0 <= left < right <= shown.picture.width
            assert 0 <= top < bottom <= shown.picture.height
            middle = shown.picture.getpixel((round((left + right) / 2), round((top + bottom) / 2)))
            assert middle == scenes.COLOURS[thing.colour]


def test_the_answer_names_the_things_and_where_they_are() -> None:
    rng = random.Random(2)

    for shown in (scenes.scene(rng) for _ in range(200)):
        first, last = shown.things[0], shown.things[-1]
        assert shown.answer.index(first.name) <= shown.answer.rindex(last.name)
        if "on the left" in shown.answer:
            assert first.box[2] <= last.box[0]
        elif "above" in shown.answer:
            assert first.box[3] <= last.box[1]
        else:
            assert len(shown.things) == 1


def test_an_answer_before_a_vowel_takes_an() -> None:
    answers = {scenes.scene(random.Random(seed), things=1).answer for seed in range(200)}

    assert "an orange circle." in answers
    assert not any(answer.startswith("a orange") for answer in answers)


@pytest.mark.parametrize("pictures", [1, 2, 3])
def test_a_question_shows_pictures_with_distinct_answers_in_order(pictures: int) -> None:
    for seed in range(50):
        question = scenes.question(random.Random(seed), pictures)
        assert len({shown.answer for shown in question.scenes}) == pictures
        assert tuple(part for part in question.parts if isinstance(part, Image.Image)) == question.pictures
        assert question.answer == question.scenes[question.asked].answer
        assert pictures == 1 or scenes.ORDINALS[question.asked] in question.text


def test_more_pictures_than_a_question_can_name_are_refused() -> None:
    with pytest.raises(ValueError, match="pictures is 4"):
        scenes.question(random.Random(0), pictures=4)


def test_filler_has_the_words_asked_for_and_none_that_an_answer_uses() -> None:
    words = scenes.filler(random.Random(3), 400).lower().replace(".", "").split()

    assert len(words) == 400
    assert not set(words) & {*scenes.COLOURS, *scenes.SHAPES, *scenes.ORDINALS, "left", "right", "above"}
    assert scenes.filler(random.Random(3), 0) == ""


def test_filler_surrounds_the_pictures() -> None:
    placed = [scenes.question(random.Random(seed), filler_words=40).parts for seed in range(20)]

    assert all(sum(len(part.split()) for part in parts if isinstance(part, str)) >= 40 for parts in placed)
    assert any(isinstance(parts[0], str) and isinstance(parts[-1], str) for parts in placed)


def test_content_carries_the_pictures_losslessly_as_data_urls() -> None:
    question = scenes.question(random.Random(4), pictures=2)

    urls = [item["image_url"]["url"] for item in question.content() if item["type"] == "image_url"]

    for url, picture in zip(urls, question.pictures, strict=True):
        prefix, encoded = url.split(",")
        assert prefix == "data:image/png;base64"
        assert Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB") == picture.copy()
