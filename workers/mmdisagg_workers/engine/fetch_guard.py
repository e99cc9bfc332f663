"""Fetching a client's URL without becoming the client's hands inside the cluster.

The rules, in order, on the first URL and on every redirect:

1. scheme `http` or `https`;
2. if hosts are listed, the host is one of them;
3. every address that the host resolves to is public, or the host is listed and private networks are
   allowed for listed hosts; link-local, metadata and multicast addresses never are;
4. the connection goes to the addresses that were checked: the check is the connection's resolver.

No proxy, no cookies, no credentials; size, redirects and time are bounded.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final, TypeAlias

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from .settings import MediaPolicy

MAX_REDIRECTS: Final = 5
CONNECT_SECONDS: Final = 5.0
_CHUNK: Final = 1 << 16
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_METADATA: Final = frozenset({ipaddress.ip_address("168.63.129.16"), ipaddress.ip_address("fd00:ec2::254")})
"""Cloud metadata services on addresses that no general rule covers, or that a private network would allow."""
_NAT64: Final = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
_V4_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")


class MediaRefused(ValueError):
    """The policy forbids this URL; nothing was connected to for it."""


class MediaUnavailable(Exception):
    """The URL is allowed, but its origin did not deliver the medium."""


def refusal(address: str, *, private_allowed: bool) -> str | None:
    """Say why an IP address must not be connected to, or return None when it may be.

    Addresses of IPv6 that stand for one of IPv4 (mapped, compatible, 6to4, NAT64) are judged by that one too.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    inner = _embedded_v4(ip)
    if inner is not None:
        return refusal(str(inner), private_allowed=private_allowed)
    if ip in _METADATA or ip.is_link_local:
        return "is link-local or a metadata service"
    if ip.is_multicast or ip.is_unspecified or (ip.is_reserved and not ip.is_loopback):
        return "is no unicast address of a host"
    if not ip.is_global and not (private_allowed and _is_local(ip)):
        return "is not public"
    return None


def _embedded_v4(ip: Address) -> ipaddress.IPv4Address | None:
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    if ip.ipv4_mapped or ip.sixtofour:
        return ip.ipv4_mapped or ip.sixtofour
    compatible = ip in _V4_COMPATIBLE and int(ip) > 1
    if compatible or any(ip in network for network in _NAT64):
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return None


def _is_local(ip: Address) -> bool:
    return ip.is_private or ip.is_loopback


class UrlRules:
    """What the policy says about URLs and addresses."""

    def __init__(self, policy: MediaPolicy) -> None:
        self._policy = policy

    def check_url(self, url: URL) -> URL:
        """Return `url` when scheme, host and, for a literal address, the address are allowed.

        Raises:
            MediaRefused: they are not.
        """
        if url.scheme not in ("http", "https"):
            raise MediaRefused(f"media URL: scheme {url.scheme!r} is not allowed; use http, https or data")
        host = _host(url)
        if not host:
            raise MediaRefused("media URL: it names no host")
        if self._policy.allowed_hosts and not self._listed(host):
            raise MediaRefused(f"media URL: host {host!r} is not among the allowed hosts")
        if _is_literal(host):
            self.check_addresses(host, [host])
        return url

    def check_addresses(self, host: str, addresses: list[str]) -> None:
        """Check everything that `host` resolved to: one forbidden address spoils the rest.

        Raises:
            MediaRefused: an address is forbidden.
        """
        private_allowed = self._policy.allow_private_networks and self._listed(host)
        for address in addresses:
            reason = refusal(address, private_allowed=private_allowed)
            if reason is not None:
                raise MediaRefused(f"media URL: host {host!r}: its address {reason}")

    def _listed(self, host: str) -> bool:
        name = host.lower().rstrip(".")
        return any(_matches(name, pattern) for pattern in self._policy.allowed_hosts)


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("*."):
        return name.endswith(pattern[1:]) and len(name) >= len(pattern)
    return name == pattern


def _host(url: URL) -> str:
    return (url.raw_host or "").lower()


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


class CheckedResolver(AbstractResolver):
    """Resolves as the system does, and lets only allowed addresses through to the connection."""

    def __init__(self, rules: UrlRules) -> None:
        self._rules = rules

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the checked addresses of `host`.

        Raises:
            MediaRefused: one of them is forbidden.
            OSError: the name does not resolve.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        addresses = [str(entry[4][0]) for entry in found]
        self._rules.check_addresses(host, addresses)
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(
                hostname=host, host=address, port=port, family=entry[0], proto=entry[2], flags=numeric
            )
            for entry, address in zip(found, addresses, strict=True)
        ]

    async def close(self) -> None:
        """Nothing to close."""


class MediaFetcher:
    """Fetches media by URL under a policy, one GET each."""

    def __init__(self, policy: MediaPolicy) -> None:
        self._policy = policy
        self._rules = UrlRules(policy)

    async def fetch(self, url: str, seconds: float) -> bytes:
        """Return the body behind `url`, at most `policy.bytes` long.

        Args:
            url: as the client gave it.
            seconds: time for everything, redirects included.

        Raises:
            MediaRefused: the policy forbids the URL, a redirect or an address.
            MediaUnavailable: the origin failed, was too slow, or sent too much.
        """
        target = self._rules.check_url(_parse(url))
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, CONNECT_SECONDS))
        connector = aiohttp.TCPConnector(resolver=CheckedResolver(self._rules), use_dns_cache=False)
        try:
            async with aiohttp.ClientSession(
                connector=connector, timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
            ) as session:
                return await self._follow(session, target)
        except TimeoutError:
            raise MediaUnavailable(
                f"media URL: {_host(target)!r} did not answer within {seconds:g} s"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise _cause(error, target) from None

    async def _follow(self, session: aiohttp.ClientSession, url: URL) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            async with session.get(url, allow_redirects=False) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or location is None:
                    return await self._body(response)
            url = self._rules.check_url(url.join(_parse(location)))
        raise MediaUnavailable(f"media URL: more than {MAX_REDIRECTS} redirects")

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        if response.status != 200:
            raise MediaUnavailable(f"media URL: {response.url.raw_host!r} answered HTTP {response.status}")
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            body += chunk
            if len(body) > self._policy.bytes:
                raise MediaUnavailable(f"media URL: the medium is larger than {self._policy.bytes} bytes")
        return bytes(body)


def _parse(url: str) -> URL:
    try:
        return URL(url)
    except ValueError:
        raise MediaRefused("media URL: it is malformed") from None


def _cause(error: BaseException, target: URL) -> Exception:
    """Return the refusal that a connection error wraps, or call the origin unavailable."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MediaRefused):
            return seen
        if isinstance(seen, aiohttp.InvalidURL):
            return MediaRefused("media URL: it is malformed")
        seen = seen.__cause__ or seen.__context__
    return MediaUnavailable(f"media URL: {_host(target)!r} could not be reached ({type(error).__name__})")
