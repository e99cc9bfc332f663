"""Scenes: small pictures of coloured shapes, with the one sentence that describes each.

A picture whose right answer is known without a model lets every part of the project ask the same thing: did
the model see *this* picture? `mmdisagg verify`, the demo, the tests and the training of the tiny model all
draw from here. A key or value cache that belongs to another picture shows up as a wrong colour.

Everything is a pure function of the `random.Random` that is passed in: the same seed gives the same scenes on
every machine. Only Pillow and the standard library are needed.
"""

import base64
import io
import random
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

from PIL import Image, ImageDraw

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (225, 30, 30),
    "green": (30, 165, 60),
    "blue": (40, 70, 230),
    "yellow": (250, 230, 40),
    "purple": (150, 40, 190),
    "orange": (250, 135, 20),
    "black": (10, 10, 10),
    "white": (250, 250, 250),
}
"""The colours a thing may have, with their RGB values (0 to 255)."""

SHAPES = ("circle", "square", "triangle", "cross")
"""The shapes a thing may have."""

SIDES = (56, 60, 70, 84, 100, 112, 130, 140)
"""The widths and heights of pictures, in pixels: multiples of 28 (Qwen's merged patch) and others."""

ORDINALS = ("first", "second", "third")
"""How a question names its pictures, in the order in which they are sent."""

_NEUTRAL = """
although another because before between business careful certain chapter company consider
country daily during early enough evening every family few friend garden general happen history
however hundred idea important journey kitchen large letter library little machine market matter
meeting memory minute moment morning mountain music nature never notice number office often
paper people perhaps person place question quiet rather reason remember river school season
several simple station story street summer system table teacher through together tomorrow travel
under usual village visit water weather window winter without writing year yesterday
"""
FILLER_WORDS = tuple(_NEUTRAL.split())
"""Plain words that name neither a colour, a shape nor a place in a picture."""

_GREYS = (100, 180)
_TWO_THINGS_MINIMUM = 84
_QUESTIONS = (
    "What is in the {image}?",
    "What does the {image} show?",
    "Describe the {image}.",
)
_LINKS = ("", " and ", " Here is another image: ", "\n")

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels of the picture."""


class TextItem(TypedDict):
    """A text item of an OpenAI chat message."""

    type: Literal["text"]
    text: str


class ImageUrl(TypedDict):
    """The address of a picture, here always a `data:` URL."""

    url: str


class ImageItem(TypedDict):
    """A picture item of an OpenAI chat message."""

    type: Literal["image_url"]
    image_url: ImageUrl


@dataclass(frozen=True, slots=True)
class Thing:
    """One coloured shape in a picture; `box` is the square that it fills."""

    colour: str
    shape: str
    box: Box

    @property
    def name(self) -> str:
        """The thing in words, for example `red circle`."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True)
class Scene:
    """An RGB picture, the sentence that describes it, and the things in it in the order of the sentence."""

    picture: Image.Image
    answer: str
    things: tuple[Thing, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A question about one of the scenes that it shows.

    `parts` holds the pictures and the texts of the user's message in the order in which they are sent;
    `scenes` are the scenes of those pictures; `asked` is the index of the scene that the question is about.
    """

    parts: tuple[Image.Image | str, ...]
    scenes: tuple[Scene, ...]
    asked: int

    @property
    def answer(self) -> str:
        """The one right answer."""
        return self.scenes[self.asked].answer

    @property
    def pictures(self) -> tuple[Image.Image, ...]:
        """The pictures, in the order in which they are sent."""
        return tuple(scene.picture for scene in self.scenes)

    @property
    def text(self) -> str:
        """All texts of the message, joined; the pictures left out."""
        return "".join(part for part in self.parts if isinstance(part, str))

    def content(self) -> list[TextItem | ImageItem]:
        """The message's `content` for an OpenAI chat request, the pictures as `data:` URLs."""
        return [_item(part) for part in self.parts]


def scene(rng: random.Random, things: int | None = None) -> Scene:
    """Draw a scene of one or two things (chosen by `rng` unless `things` says how many)."""
    count = things or rng.choice((1, 2, 2))
    beside = rng.random() < 0.5
    long_side = rng.choice([side for side in SIDES if count == 1 or side >= _TWO_THINGS_MINIMUM])
    short_side = rng.choice(SIDES)
    size = (long_side, short_side) if beside else (short_side, long_side)
    cells = _cells(size, count, beside)
    placed = tuple(
        Thing(rng.choice(tuple(COLOURS)), rng.choice(SHAPES), _place(rng, cell, loose=count == 1))
        for cell in cells
    )
    return Scene(_draw(size, rng.randint(*_GREYS), placed), _sentence(placed, beside), placed)


def question(rng: random.Random, pictures: int = 1, filler_words: int = 0) -> Question:
    """Ask about one of `pictures` (1 to 3) scenes, with `filler_words` neutral words around the pictures.

    The scenes of one question have pairwise different answers: an answer about the wrong picture is wrong.

    Raises:
        ValueError: `pictures` is more than a question can name, or less than one.
    """
    if not 1 <= pictures <= len(ORDINALS):
        raise ValueError(f"pictures is {pictures}; a question shows 1 to {len(ORDINALS)}")
    scenes = _distinct(rng, pictures)
    asked = rng.randrange(pictures)
    return Question(_message(rng, scenes, ask(rng, pictures, asked), filler_words), scenes, asked)


def ask(rng: random.Random, pictures: int, asked: int) -> str:
    """Word the question about picture number `asked` (from 0) of `pictures`."""
    noun = rng.choice(("image", "picture"))
    return rng.choice(_QUESTIONS).format(image=noun if pictures == 1 else f"{ORDINALS[asked]} {noun}")


def filler(rng: random.Random, words: int) -> str:
    """Neutral English: `words` words in sentences of five to twelve; the empty string for none."""
    sentences = []
    while words > 0:
        length = min(words, rng.randint(5, 12))
        sentences.append(" ".join(rng.choices(FILLER_WORDS, k=length)).capitalize() + ".")
        words -= length
    return " ".join(sentences)


def png(image: Image.Image) -> bytes:
    """The picture as a PNG file; lossless, so every reader sees the same pixels."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def data_url(image: Image.Image) -> str:
    """The picture as a `data:image/png;base64,` URL."""
    return "data:image/png;base64," + base64.b64encode(png(image)).decode("ascii")


def _item(part: Image.Image | str) -> TextItem | ImageItem:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": data_url(part)}}


def _cells(size: tuple[int, int], count: int, beside: bool) -> list[Box]:
    width, height = size
    if beside:
        return [(i * width / count, 0, (i + 1) * width / count, height) for i in range(count)]
    return [(0, i * height / count, width, (i + 1) * height / count) for i in range(count)]


def _place(rng: random.Random, cell: Box, loose: bool) -> Box:
    left, top, right, bottom = cell
    side = min(right - left, bottom - top)
    radius = side * (rng.uniform(0.26, 0.42) if loose else rng.uniform(0.32, 0.42))
    room = side / 2 - radius - 1
    x = (left + right) / 2 + rng.uniform(-room, room)
    y = (top + bottom) / 2 + rng.uniform(-room, room)
    return (round(x - radius), round(y - radius), round(x + radius), round(y + radius))


def _draw(size: tuple[int, int], grey: int, things: tuple[Thing, ...]) -> Image.Image:
    picture = Image.new("RGB", size, (grey, grey, grey))
    canvas = ImageDraw.Draw(picture)
    for thing in things:
        _draw_thing(canvas, thing)
    return picture


def _draw_thing(canvas: ImageDraw.ImageDraw, thing: Thing) -> None:
    left, top, right, bottom = thing.box
    fill = COLOURS[thing.colour]
    if thing.shape == "circle":
        canvas.ellipse(thing.box, fill=fill)
    elif thing.shape == "square":
        canvas.rectangle(thing.box, fill=fill)
    elif thing.shape == "triangle":
        canvas.polygon([((left + right) / 2, top), (left, bottom), (right, bottom)], fill=fill)
    else:
        third = (right - left) / 3
        canvas.rectangle((left + third, top, right - third, bottom), fill=fill)
        canvas.rectangle((left, top + third, right, bottom - third), fill=fill)


def _sentence(things: tuple[Thing, ...], beside: bool) -> str:
    articled = [("an " if thing.name[0] in "aeiou" else "a ") + thing.name for thing in things]
    if len(articled) == 1:
        return f"{articled[0]}."
    return (
        "{} on the left and {} on the right.".format(*articled)
        if beside
        else "{} above {}.".format(*articled)
    )


def _distinct(rng: random.Random, count: int) -> tuple[Scene, ...]:
    by_answer: dict[str, Scene] = {}
    while len(by_answer) < count:
        drawn = scene(rng)
        by_answer.setdefault(drawn.answer, drawn)
    return tuple(by_answer.values())


def _message(
    rng: random.Random, scenes: tuple[Scene, ...], asking: str, filler_words: int
) -> tuple[Image.Image | str, ...]:
    before = rng.randint(0, filler_words)
    question_first = rng.random() < 0.2
    parts: list[Image.Image | str] = [
        _paragraph(filler(rng, before)),
        _paragraph(asking) if question_first else "",
    ]
    for index, shown in enumerate(scenes):
        parts += [rng.choice(_LINKS) if index else "", shown.picture]
    parts += [_paragraph(filler(rng, filler_words - before)), "" if question_first else asking]
    return tuple(part for part in parts if part != "")


def _paragraph(text: str) -> str:
    return f"{text}\n" if text else ""
