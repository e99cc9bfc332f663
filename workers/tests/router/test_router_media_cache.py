"""What the router remembers about pictures."""

from __future__ import annotations

import json

from scripted_engines import chat, identity_of, picture

from mmdisagg_workers.contract import Medium
from mmdisagg_workers.router.legs import EncodedMedium
from mmdisagg_workers.router.media_cache import MediaCache, media_key
from mmdisagg_workers.router.validation import ClientMedium, parse_chat


def body(**fields):
    return parse_chat(json.dumps(chat("hi", **fields)).encode())


def encoded(name: str) -> EncodedMedium:
    return EncodedMedium(Medium("image", identity_of(name), 4, (1, 4, 4)), {})


def key(url: str, **fields) -> bytes | None:
    return media_key(ClientMedium("image", url), body(**fields), "r1")


def test_only_inline_media_have_a_key():
    assert key(picture("a")) is not None
    assert key("https://x/a.png") is None


def test_a_key_depends_on_content_modality_and_processor_arguments():
    clip = media_key(ClientMedium("video", picture("a")), body(), "r1")
    keys = {
        key(picture("a")),
        key(picture("b")),
        clip,
        key(picture("a"), mm_processor_kwargs={"max_pixels": 5}),
        key(picture("a"), media_io_kwargs={"image": {"a": 1}}),
    }

    assert len(keys) == 5
    assert key(picture("a"), temperature=1) == key(picture("a"))


def test_the_oldest_unused_entry_is_dropped():
    cache = MediaCache(entries=2)
    cache.put(b"a", encoded("a"))
    cache.put(b"b", encoded("b"))
    assert cache.get(b"a") == encoded("a")

    cache.put(b"c", encoded("c"))

    assert [cache.get(k) is not None for k in (b"a", b"b", b"c")] == [True, False, True]


def test_what_is_forgotten_is_gone():
    cache = MediaCache()
    cache.put(b"a", encoded("a"))
    cache.put(None, encoded("b"))

    cache.forget([b"a", b"unknown", None])

    assert cache.get(b"a") is None
    assert cache.get(None) is None
