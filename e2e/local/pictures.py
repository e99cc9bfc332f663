"""Media for the tests: scenes whose right answer is known, and noise that every model sees differently."""

from __future__ import annotations

import base64
import io
import random
from typing import Any

from PIL import Image

from mmdisagg_cli.scenes import data_url, filler

WORDS_FOR_TWO_BLOCKS = 40
"""Filler words that make a prompt longer than two KV blocks of 32 tokens."""


def noise(seed: int, width: int = 56, height: int = 56) -> Image.Image:
    """A picture of random pixels."""
    return Image.frombytes("RGB", (width, height), random.Random(seed).randbytes(width * height * 3))


def image_part(image: Image.Image) -> dict[str, Any]:
    """A picture as a chat part with a data URL."""
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def text_part(text: str) -> dict[str, Any]:
    """A text as a chat part."""
    return {"type": "text", "text": text}


def video_part(seed: int, frames: int = 8, size: int = 64) -> dict[str, Any]:
    """A video of noise as a chat part: vLLM's `video/jpeg` data URL, one JPEG per frame."""
    encoded = [base64.b64encode(_jpeg(noise(seed * 100 + i, size, size))).decode() for i in range(frames)]
    return {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64," + ",".join(encoded)}}


def about(
    *parts: dict[str, Any], text: str = "describe this", words: int = 0, seed: int = 0
) -> list[dict[str, Any]]:
    """Message content: filler, then the media, then the question."""
    lead = [text_part(filler(random.Random(seed), words) + "\n")] if words else []
    return [*lead, *parts, text_part(text)]


def _jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=95)
    return buffer.getvalue()
