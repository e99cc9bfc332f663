"""The fetch guard: addresses, URLs, and real fetches from servers on this machine."""

import asyncio
import ipaddress
import socket
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from mmdisagg_workers.engine import fetch_guard
from mmdisagg_workers.engine.fetch_guard import (
    MAX_REDIRECTS,
    MediaFetcher,
    MediaRefused,
    MediaUnavailable,
    UrlRules,
    refusal,
)
from mmdisagg_workers.engine.settings import MediaPolicy

LOCAL = MediaPolicy(allowed_hosts=("127.0.0.1", "localhost", "*.test"), allow_private_networks=True)

NEVER = [
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "168.63.129.16",
    "224.0.0.1",
    "239.1.2.3",
    "ff02::1",
    "ff0e::1",
    "0.0.0.0",
    "::",
    "240.0.0.1",
    "255.255.255.255",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
]
PRIVATE = [
    "127.0.0.1",
    "127.9.9.9",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "::1",
    "fd12::1",
    "fc00::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::a00:1",
    "2002:7f00:1::1",
]
SHARED = ["100.64.0.1", "100.127.255.255", "100.100.100.200", "::ffff:100.64.0.1"]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2002:808:808::1",
]


@pytest.mark.case("c17")
@pytest.mark.parametrize("address", NEVER)
@pytest.mark.parametrize("private_allowed", [False, True])
def test_some_addresses_are_never_allowed(address, private_allowed):
    assert refusal(address, private_allowed=private_allowed)


@pytest.mark.case("c17")
@pytest.mark.parametrize("address", [*PRIVATE, *SHARED])
def test_private_addresses_are_refused_by_default(address):
    assert refusal(address, private_allowed=False)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_can_be_allowed(address):
    assert refusal(address, private_allowed=True) is None


@pytest.mark.parametrize("address", SHARED)
def test_carrier_addresses_stay_refused(address):
    assert refusal(address, private_allowed=True)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_pass(address):
    assert refusal(address, private_allowed=False) is None


@given(st.ip_addresses())
def test_whatever_is_not_global_is_refused(address):
    if not address.is_global:
        assert refusal(str(address), private_allowed=False) or fetch_guard._embedded_v4(address)


@given(st.ip_addresses(v=4))
def test_a_mapped_address_is_judged_like_the_address_itself(address):
    mapped = ipaddress.IPv6Address(f"::ffff:{address}")
    assert refusal(str(mapped), private_allowed=False) == refusal(str(address), private_allowed=False)


@pytest.mark.case("c17")
@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.com/a.png",
        "gopher://example.com",
        "data:text/plain,x",
        "http:///nohost",
        "//example.com/a.png",
        "http://127.0.0.1/",
        "http://[::1]:80/",
        "http://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/a.png",
    ],
)
def test_refused_by_the_url_alone(url):
    with pytest.raises(MediaRefused):
        UrlRules(MediaPolicy()).check_url(URL(url))


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://img.example.com/a", True),
        ("https://IMG.example.com:8443/a", True),
        ("https://img.example.com./a", True),
        ("https://example.com/a", False),
        ("https://evil-img.example.com/a", False),
        ("https://img.example.com.evil.net/a", False),
        ("https://a.cdn.net/a", True),
        ("https://a.b.cdn.net/a", True),
        ("https://cdn.net/a", False),
        ("https://xcdn.net/a", False),
        ("https://user:secret@evil.net/img.example.com", False),
    ],
)
def test_listed_hosts_are_the_only_ones(url, allowed):
    rules = UrlRules(MediaPolicy(allowed_hosts=("img.example.com", "*.cdn.net")))
    if allowed:
        rules.check_url(URL(url))
        return
    with pytest.raises(MediaRefused, match="not among the allowed hosts"):
        rules.check_url(URL(url))


def test_one_private_address_among_public_ones_spoils_the_host():
    with pytest.raises(MediaRefused):
        UrlRules(MediaPolicy()).check_addresses("mixed.example", ["8.8.8.8", "10.0.0.1"])


def test_only_a_listed_host_may_be_private():
    policy = MediaPolicy(allow_private_networks=True)
    with pytest.raises(MediaRefused):
        UrlRules(policy).check_addresses("internal", ["10.0.0.1"])


@asynccontextmanager
async def served(**routes):
    """A server on this machine; yields its base URL and the list of requested paths."""
    hits = []

    async def answer(request):
        hits.append(request.path)
        return await routes[request.path.strip("/")](request)

    app = web.Application()
    app.router.add_route("*", "/{path}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", hits
    finally:
        await runner.cleanup()


def body(content, **kwargs):
    async def answer(request):
        return web.Response(body=content, **kwargs)

    return answer


def redirect(location, status=302):
    async def answer(request):
        return web.Response(status=status, headers={"Location": location})

    return answer


@pytest.mark.case("c11")
async def test_an_allowed_url_is_fetched_once():
    async with served(a=body(b"picture")) as (base, hits):
        assert await MediaFetcher(LOCAL).fetch(f"{base}/a", 5) == b"picture"
    assert hits == ["/a"]


@pytest.mark.case("c17")
async def test_a_private_url_is_refused_without_a_connection():
    async with served(a=body(b"secret")) as (base, hits):
        for url in (f"{base}/a", f"{base}/a".replace("127.0.0.1", "localhost")):
            with pytest.raises(MediaRefused):
                await MediaFetcher(MediaPolicy()).fetch(url, 5)
    assert hits == []


@pytest.mark.parametrize("literal", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1"])
async def test_other_spellings_of_an_address_are_resolved_and_refused(literal):
    with pytest.raises((MediaRefused, MediaUnavailable)) as caught:
        await MediaFetcher(MediaPolicy()).fetch(f"http://{literal}:9/a", 5)
    assert isinstance(caught.value, MediaRefused)


@pytest.mark.case("c17")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "location", ["http://169.254.169.254/latest", "http://10.0.0.1/", "file:///etc/passwd", "ftp://h/x"]
)
async def test_every_redirect_is_checked(status, location):
    async with served(a=redirect(location, status)) as (base, hits):
        with pytest.raises(MediaRefused):
            await MediaFetcher(LOCAL).fetch(f"{base}/a", 5)
    assert hits == ["/a"]


async def test_a_redirect_to_an_allowed_place_is_followed():
    async with served(a=redirect("b", 307), b=body(b"there")) as (base, hits):
        assert await MediaFetcher(LOCAL).fetch(f"{base}/a", 5) == b"there"
    assert hits == ["/a", "/b"]


async def test_redirects_end():
    async with served(a=redirect("/a")) as (base, hits):
        with pytest.raises(MediaUnavailable, match="redirects"):
            await MediaFetcher(LOCAL).fetch(f"{base}/a", 5)
    assert len(hits) == MAX_REDIRECTS + 1


@pytest.mark.case("c17")
async def test_the_connection_goes_to_the_checked_address(monkeypatch):
    """A name that answers with a public address first and a private one later (DNS rebinding)."""
    answers = iter(["93.184.216.34", "127.0.0.1"])
    asked = []
    connected = []

    async def getaddrinfo(self, host, port, **kwargs):
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    async def sock_connect(self, sock, address):
        connected.append(address[0])
        raise OSError("no route in this test")

    loop = type(asyncio.get_running_loop())
    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(loop, "sock_connect", sock_connect)
    with pytest.raises(MediaUnavailable):
        await MediaFetcher(MediaPolicy()).fetch("http://rebinding.example/a", 5)
    assert asked == ["rebinding.example"]
    assert connected == ["93.184.216.34"]


@pytest.mark.case("c03")
@pytest.mark.parametrize("status", [204, 404, 403, 429, 500, 503])
async def test_an_origin_that_fails_is_told_once_with_its_status(status):
    async with served(a=body(b"", status=status)) as (base, hits):
        with pytest.raises(MediaUnavailable, match=str(status)):
            await MediaFetcher(LOCAL).fetch(f"{base}/a", 5)
    assert hits == ["/a"]


async def test_a_medium_that_is_too_large_is_cut_off():
    sent = []

    async def endless(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(200):
            sent.append(1)
            await response.write(b"x" * 65536)
        return response

    policy = MediaPolicy(("127.0.0.1",), True, bytes=100_000)
    async with served(a=endless) as (base, _):
        with pytest.raises(MediaUnavailable, match="100000 bytes"):
            await MediaFetcher(policy).fetch(f"{base}/a", 5)
    assert len(sent) < 200


async def test_a_slow_origin_is_given_up():
    async def slow(request):
        await asyncio.sleep(0.5)
        return web.Response()

    async with served(a=slow) as (base, _):
        with pytest.raises(MediaUnavailable, match="within"):
            await MediaFetcher(LOCAL).fetch(f"{base}/a", 0.1)


async def test_an_unreachable_origin_is_unavailable():
    with pytest.raises(MediaUnavailable, match="could not be reached"):
        await MediaFetcher(LOCAL).fetch("http://127.0.0.1:9/a", 5)


async def test_no_proxy_cookie_or_credential_is_used(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    seen = []

    async def look(request):
        seen.append({name.lower() for name in request.headers})
        return web.Response(body=b"x", headers={"Set-Cookie": "a=b"})

    async with served(a=look) as (base, _):
        await MediaFetcher(LOCAL).fetch(f"{base}/a", 5)
        await MediaFetcher(LOCAL).fetch(f"{base}/a", 5)
    assert all("cookie" not in headers and "authorization" not in headers for headers in seen)
    assert len(seen) == 2


async def test_errors_do_not_repeat_the_query():
    with pytest.raises(MediaUnavailable) as caught:
        await MediaFetcher(LOCAL).fetch("http://127.0.0.1:9/a?signature=secret", 5)
    assert "secret" not in str(caught.value)


@given(st.text(max_size=80))
def test_no_text_raises_anything_but_a_refusal(text):
    with suppress(MediaRefused):
        UrlRules(MediaPolicy()).check_url(fetch_guard._parse(text))
