"""Draws a picture in the terminal: every character is two pixels, the upper as ink and the lower as paper."""

from PIL import Image
from rich.color import Color
from rich.style import Style
from rich.text import Text

_UPPER_HALF = "\N{UPPER HALF BLOCK}"


def half_blocks(picture: Image.Image, columns: int = 32) -> Text:
    """The picture as coloured half blocks, at most `columns` characters wide, in its own proportions."""
    width = min(columns, picture.width)
    height = max(2, round(picture.height * width / picture.width / 2) * 2)
    small = picture.convert("RGB").resize((width, height))
    rows = [_row(small, top) for top in range(0, height, 2)]
    return Text("\n").join(rows)


def _row(picture: Image.Image, top: int) -> Text:
    row = Text()
    for column in range(picture.width):
        upper, lower = _colour(picture, column, top), _colour(picture, column, top + 1)
        row.append(_UPPER_HALF, Style(color=upper, bgcolor=lower))
    return row


def _colour(picture: Image.Image, column: int, row: int) -> Color:
    pixel = picture.getpixel((column, row))
    assert isinstance(pixel, tuple)  # noqa: S101
    return Color.from_rgb(*pixel[:3])
