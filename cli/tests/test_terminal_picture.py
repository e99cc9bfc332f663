"""Pictures in the terminal."""

from PIL import Image

from mmdisagg_cli.terminal_picture import half_blocks


def test_a_character_shows_two_pixels() -> None:
    picture = Image.new("RGB", (1, 2))
    picture.putpixel((0, 0), (255, 0, 0))
    picture.putpixel((0, 1), (0, 0, 255))
    drawn = half_blocks(picture)
    assert drawn.plain == "▀"
    assert str(drawn.spans[0].style) == "#ff0000 on #0000ff"


def test_a_wide_picture_is_scaled_down_in_its_proportions() -> None:
    lines = half_blocks(Image.new("RGB", (128, 64)), columns=32).plain.split("\n")
    assert [len(line) for line in lines] == [32] * 8
