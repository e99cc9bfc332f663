"""The little of Kubernetes' API that discovery needs: list and watch, as the pod's own service account.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes. A watch is ended
by the server after `WATCH_SECONDS` and goes on where it was: a connection that died unnoticed is noticed
then. The token is read for every request, since the kubelet replaces the file about every hour.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from msgspec import Raw, Struct

from .settings import SettingsError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where every pod that may speak with the API server finds token, CA and namespace."""
WATCH_SECONDS: Final = 60
_ANSWER_SECONDS: Final = 15.0
_GONE: Final = 410


class ApiServerError(Exception):
    """The API server did not answer as it should; the message says how."""


class GoneError(ApiServerError):
    """What was watched is too old to go on from: list again."""


class Event(Struct):
    """One line of a watch.

    Attributes:
        type: `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
        object: the object as it is now, as it was last, or what is wrong.
    """

    type: str
    object: Raw


class _Status(Struct):
    code: int = 0
    message: str = ""


@dataclass(frozen=True)
class Access:
    """How a pod reaches its API server.

    Attributes:
        url: base URL.
        account: directory with `token` and `namespace`.
        tls: whom to trust, or None over plain HTTP.
    """

    url: str
    account: Path
    tls: ssl.SSLContext | None

    @classmethod
    def in_pod(cls, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> Access:
        """Return the access of the pod that this process runs in.

        Raises:
            SettingsError: it runs in none, or in one without a service account's token.
        """
        host = environment.get("KUBERNETES_SERVICE_HOST", "")
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (account / "token").is_file():
            raise SettingsError(
                f"engines can be discovered only in a pod with a service account: {account}/token and "
                "KUBERNETES_SERVICE_HOST are needed; give --encode, --prefill and --decode elsewhere"
            )
        return cls(f"https://{bracketed(host)}:{port}", account, _trust(account / "ca.crt"))

    @property
    def token(self) -> str:
        """The service account's token as it is now."""
        return (self.account / "token").read_text().strip()

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return (self.account / "namespace").read_text().strip()


def bracketed(host: str) -> str:
    """Return a host as URLs spell it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


class ApiServer:
    """Lists and watches."""

    def __init__(self, access: Access, session: aiohttp.ClientSession) -> None:
        self._access = access
        self._session = session

    async def list(self, path: str, selector: str) -> bytes:
        """Return the JSON of all objects that a label selector selects.

        Raises:
            ApiServerError: no such answer.
        """
        limits = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        async with self._answer(path, {"labelSelector": selector}, limits) as response:
            return await response.read()

    async def watch(self, path: str, selector: str, version: str) -> AsyncGenerator[Event, None]:
        """Yield what changes after `version`, until the server ends the watch.

        Raises:
            GoneError: the version is too old.
            ApiServerError: the connection broke, or the server refuses.
        """
        wanted = {
            "labelSelector": selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        limits = aiohttp.ClientTimeout(total=WATCH_SECONDS + _ANSWER_SECONDS, connect=_ANSWER_SECONDS)
        async with self._answer(path, wanted, limits) as response:
            async for line in _lines(response.content):
                yield _event(line)

    @asynccontextmanager
    async def _answer(
        self, path: str, wanted: Mapping[str, str], limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        with _typed_failures():
            async with self._session.get(
                self._access.url + path,
                params=wanted,
                headers={"Authorization": f"Bearer {self._access.token}"},
                timeout=limits,
                allow_redirects=False,
                ssl=self._access.tls or True,
            ) as response:
                if response.status != 200:
                    raise _refused(response, await response.read())
                yield response


def _event(line: bytes) -> Event:
    event = msgspec.json.decode(line, type=Event)
    if event.type == "ERROR":
        raise _refusal(msgspec.json.decode(event.object, type=_Status))
    return event


def _refusal(status: _Status) -> ApiServerError:
    kind = GoneError if status.code == _GONE else ApiServerError
    return kind(f"the API server answered {status.code}: {status.message}")


def _refused(response: aiohttp.ClientResponse, body: bytes) -> ApiServerError:
    try:
        message = msgspec.json.decode(body, type=_Status).message
    except msgspec.DecodeError:
        message = response.reason or ""
    return _refusal(_Status(response.status, message))


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    # aiohttp's own lines have a maximum length, which a slice of a hundred engines exceeds.
    rest = b""
    while data := await content.readany():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line:
                yield line


@contextmanager
def _typed_failures() -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ApiServerError(
            f"the API server cannot be reached: {str(error) or type(error).__name__}"
        ) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ApiServerError(f"the API server's answer cannot be read: {error}") from None


def _trust(authority: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"{authority}: {error}") from None
