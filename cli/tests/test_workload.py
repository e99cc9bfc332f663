"""The requests that `verify` sends."""

import json
import random

from mmdisagg_cli import scenes
from mmdisagg_cli.workload import PictureRequest, picture_requests, same_question_other_picture


def texts(request: PictureRequest) -> list[str]:
    return [item["text"] for item in request.content if item["type"] == "text"]


def pictures(request: PictureRequest) -> list[str]:
    return [item["image_url"]["url"] for item in request.content if item["type"] == "image_url"]


def test_the_same_seed_draws_the_same_requests() -> None:
    assert list(picture_requests(3, 8, 8, 2048)) == list(picture_requests(3, 8, 8, 2048))
    assert list(picture_requests(3, 8, 8, 2048)) != list(picture_requests(4, 8, 8, 2048))


def test_as_many_as_asked_for_are_drawn_with_one_and_two_pictures() -> None:
    requests = list(picture_requests(0, 13, 8, 2048))
    assert len(requests) == 13
    assert {len(pictures(request)) for request in requests} == {1, 2}


def test_a_limit_of_one_picture_is_kept() -> None:
    assert {len(pictures(request)) for request in picture_requests(0, 12, 1, 2048)} == {1}


def test_the_same_text_is_asked_about_another_picture_and_a_request_comes_again() -> None:
    _, long, twin, _, again, _ = picture_requests(0, 6, 8, 2048)
    assert texts(long) == texts(twin)
    assert pictures(long) != pictures(twin)
    assert json.dumps(long.content) == json.dumps(again.content)
    assert sum(len(text.split()) for text in texts(long)) > 128


def test_the_other_picture_has_the_same_size_and_another_answer() -> None:
    rng = random.Random(5)
    for _ in range(10):
        question = scenes.question(rng, filler_words=20)
        other = same_question_other_picture(rng, question)
        assert other.text == question.text
        assert other.pictures[0].size == question.pictures[0].size
        assert other.answer != question.answer


def test_a_long_prompt_fits_a_short_context() -> None:
    _, long, *_ = picture_requests(0, 6, 8, 512)
    assert sum(len(text) for text in texts(long)) < 512
