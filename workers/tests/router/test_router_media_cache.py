"""What the router remembers about pictures."""

from __future__ import annotations

import json

import pytest
from scripted_engines import chat, identity_of, image_part, picture

from mmdisagg_workers.contract import Medium
from mmdisagg_workers.router.legs import EncodedMedium
from mmdisagg_workers.router.media_cache import MediaCache, Scope, media_key
from mmdisagg_workers.router.validation import ClientMedium, parse_chat

RED = picture("red")
SCOPE = Scope("r1")
LOOKUPS = "mmdisagg_router_media_cache_total"


def body(**fields):
    return parse_chat(json.dumps(chat("hi", **fields)).encode())


def encoded(name: str) -> EncodedMedium:
    return EncodedMedium(Medium("image", identity_of(name), 4, (1, 4, 4)), {})


def key(url: str, scope: Scope = SCOPE, **fields) -> bytes | None:
    return media_key(ClientMedium("image", url), body(**fields), scope)


def test_only_inline_media_have_a_key():
    assert key(picture("a")) is not None
    assert key("https://x/a.png") is None


def test_a_key_depends_on_content_modality_and_processor_arguments():
    clip = media_key(ClientMedium("video", picture("a")), body(), SCOPE)
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


def test_a_key_depends_on_revision_and_tenant():
    keys = {key(RED, Scope(revision, tenant)) for revision in ("r1", "r2") for tenant in ("", "a", "b")}

    assert len(keys) == 6


def test_entries_are_bounded_by_their_bytes_too():
    one = EncodedMedium(Medium("image", "a", 4, (1, 4, 4)), {"peer": "x" * 1000})
    cache = MediaCache(max_bytes=5000)

    for number in range(50):
        cache.put(f"{number}".encode(), one)
        assert cache.used_bytes <= 5000

    kept = [number for number in range(50) if cache.get(f"{number}".encode())]
    assert kept == list(range(50 - len(kept), 50))
    assert 3 <= len(kept) <= 4


def test_an_entry_that_is_put_again_counts_once():
    cache = MediaCache()
    cache.put(b"a", encoded("a"))
    once = cache.used_bytes

    cache.put(b"a", encoded("a"))
    assert cache.used_bytes == once
    cache.forget([b"a", b"a"])

    assert cache.used_bytes == 0


def test_an_entry_larger_than_the_cache_is_not_kept():
    cache = MediaCache(max_bytes=100)

    cache.put(b"a", EncodedMedium(Medium("image", "a", 4), {"peer": "x" * 1000}))

    assert cache.get(b"a") is None
    assert cache.used_bytes == 0


# -- whole requests --------------------------------------------------------------------------------


async def lookups(deployment):
    return [await deployment.metric(LOOKUPS, result=result) for result in ("hit", "miss")]


async def test_a_picture_that_comes_again_is_encoded_once_whatever_is_asked_about_it(deploy):
    deployment = await deploy()

    for number in range(50):
        reply = await deployment.post(chat(image_part(RED), f"question {number}"))
        assert reply.content == "I see red"

    assert len(deployment.encode.recorded) == 1
    assert await lookups(deployment) == [49, 1]


async def test_a_picture_twice_in_one_request_is_looked_up_once(deploy):
    deployment = await deploy()

    await deployment.post(chat(image_part(RED), image_part(RED)))

    assert await lookups(deployment) == [0, 1]


async def test_pictures_behind_urls_are_neither_hit_nor_miss(deploy):
    deployment = await deploy()

    for _ in range(2):
        await deployment.post(chat(image_part("https://x/red.1x4x4"), "hm"))

    assert len(deployment.encode.recorded) == 2
    assert await lookups(deployment) == [0, 0]


@pytest.mark.case("t07")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("topology", ["E/P/D", "E/PD"])
async def test_a_stale_entry_costs_one_retry_never_a_failure(deploy, topology, stream):
    deployment = await deploy(topology)
    await deployment.post(chat(image_part(RED), "first"))
    deployment.world.embeddings.clear()

    replies = [await deployment.post(chat(image_part(RED), "hm", stream=stream)) for _ in range(3)]

    assert [reply.streamed if stream else reply.content for reply in replies] == ["I see red"] * 3
    assert len(deployment.encode.recorded) == 2
    assert await deployment.metric("mmdisagg_router_re_encodes_total") == 1
    assert await lookups(deployment) == [3, 1]


async def test_tenants_share_no_pictures_where_a_header_names_them(deploy):
    deployment = await deploy(tenant_header="X-Tenant")

    for tenant in ("a", "b", "a", "b"):
        reply = await deployment.post(chat(image_part(RED), "hm"), headers={"x-tenant": tenant})
        assert reply.content == "I see red"
    for _ in range(2):
        await deployment.post(chat(image_part(RED), "hm"))

    assert len(deployment.encode.recorded) == 3
    assert await lookups(deployment) == [3, 3]


async def test_without_a_header_of_that_meaning_all_share(deploy):
    deployment = await deploy()

    for tenant in ("a", "b"):
        await deployment.post(chat(image_part(RED), "hm"), headers={"X-Tenant": tenant})

    assert len(deployment.encode.recorded) == 1


async def test_the_tenant_is_told_to_no_engine(deploy):
    deployment = await deploy(tenant_header="X-Tenant")

    await deployment.post(chat(image_part(RED), "hm"), headers={"X-Tenant": "secret-tenant"})

    engines = [engine for group in deployment.engines.values() for engine in group]
    sent = [(str(record.headers), record.raw) for engine in engines for record in engine.recorded]
    assert "secret-tenant" not in str(sent)
