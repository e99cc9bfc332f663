"""The picture requests that `verify` sends: drawn, seeded, and chosen to catch what goes wrong between the
stages.

In turn: one picture; one picture in a prompt that spans KV blocks; the same prompt with another picture of
the same size (what a prefix cache without media identity confuses); two pictures of different sizes in a long
prompt; the long request once more (a true cache hit); two pictures.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from mmdisagg_cli import scenes
from mmdisagg_cli.chat import Content

_LONG_PROMPT_WORDS = 150

_CYCLE = 6


@dataclass(frozen=True, slots=True)
class PictureRequest:
    """One request: what it exercises, its content, and the true answer to its question."""

    kind: str
    content: Content
    truth: str


def picture_requests(
    seed: int, count: int, max_pictures: int, max_model_len: int
) -> Iterator[PictureRequest]:
    """Draw `count` requests of at most `max_pictures` pictures; the same seed draws the same requests.

    A long prompt has 150 words, more than a KV block of 128 tokens, or fewer where they might not fit: a
    tokenizer that knows no words makes about seven tokens of one.
    """
    rng = random.Random(seed)  # noqa: S311
    words = min(_LONG_PROMPT_WORDS, max_model_len // 8)
    drawn = 0
    while drawn < count:
        for request in _cycle(rng, min(2, max_pictures), words):
            if drawn < count:
                yield request
                drawn += 1


def same_question_other_picture(rng: random.Random, question: scenes.Question) -> scenes.Question:
    """The same text about another picture of the same size with another answer; for questions with one
    picture.
    """
    (known,) = question.scenes
    other = scenes.scene(rng)
    while other.picture.size != known.picture.size or other.answer == known.answer:
        other = scenes.scene(rng)
    parts = tuple(part if isinstance(part, str) else other.picture for part in question.parts)
    return scenes.Question(parts, (other,), 0)


def _cycle(rng: random.Random, several: int, words: int) -> list[PictureRequest]:
    short = scenes.question(rng)
    long = scenes.question(rng, filler_words=words)
    twin = same_question_other_picture(rng, long)
    two_long = scenes.question(rng, several, words)
    two = scenes.question(rng, several)
    return [
        _request("one picture", short),
        _request("long prompt", long),
        _request("same text, other picture", twin),
        _request("two pictures, long prompt", two_long),
        _request("seen before", long),
        _request("two pictures", two),
    ]


def _request(kind: str, question: scenes.Question) -> PictureRequest:
    return PictureRequest(kind, question.content(), question.answer)
