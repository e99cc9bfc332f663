"""The API server, as the operator speaks with it: a few calls on JSON objects.

Generated clients hide what matters here (field managers, apply patches, subresources) behind model classes;
this is the HTTP API itself, over kopf's own connection settings, so that both log in the same way.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import kopf

from .errors import ApiError, ConflictError, InvalidObjectError, UnreachableError
from .kinds import Kind, kind_of
from .plan.objects import MANAGER, Manifest

APPLY: Final = "application/apply-patch+yaml"
_JSON: Final = "application/json"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=30, sock_connect=5)
_LOGIN_SECONDS: Final = 300.0
_PAGE: Final = "500"
_NO_SUCH_OBJECT: Final = "failed to create typed patch object"
"""What server-side apply says, with status 500, of an object that its kind's schema does not allow: a field
that is not known, a key that is there twice (Kubernetes 1.34)."""

Login = Callable[[], kopf.ConnectionInfo]
"""Returns the address of the API server and fresh credentials."""

Observer = Callable[[str, Kind], None]
"""Told the verb and kind of each request that changes something."""


def _unobserved(verb: str, kind: Kind) -> None:
    """Tell nobody."""


@dataclass
class Cluster:
    """An API server.

    Attributes:
        session: HTTP connections.
        login: where and as whom to speak; asked again as tokens of service accounts expire.
        wrote: told about each write.
    """

    session: aiohttp.ClientSession
    login: Login
    wrote: Observer = _unobserved
    _info: kopf.ConnectionInfo | None = None
    _login_at: float = field(default=0.0)

    @classmethod
    @asynccontextmanager
    async def connect(cls, login: Login, wrote: Observer = _unobserved) -> AsyncIterator["Cluster"]:
        """Yield a cluster whose connections last for the block."""
        info = login()
        ssl = info.as_ssl_context() if info.server.startswith("https:") else True
        connector = aiohttp.TCPConnector(ssl=ssl)
        async with aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session:
            yield cls(session, login, wrote)

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return an object, or None where there is none."""
        try:
            return await self._request("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: Kind, namespace: str, labels: Mapping[str, str]) -> list[Manifest] | None:
        """Return the objects that carry `labels`, or None where the cluster lacks an optional kind."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        query = {"labelSelector": selector, "limit": _PAGE}
        found: list[Manifest] = []
        try:
            while True:
                page = await self._request("GET", kind.path(namespace), query=query)
                found += [_typed(kind, item) for item in page["items"]]
                query["continue"] = page["metadata"].get("continue", "")
                if not query["continue"]:
                    return found
        except ApiError as error:
            if error.status == 404 and kind.optional:
                return None
            raise

    async def create(self, manifest: Manifest) -> Manifest:
        """Make an object that is not there yet."""
        kind = kind_of(manifest)
        return await self._write("POST", kind, kind.path(_namespace(manifest)), manifest)

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object; its resourceVersion must be the one that was read."""
        kind = kind_of(manifest)
        return await self._write("PUT", kind, kind.path(_namespace(manifest), _name(manifest)), manifest)

    async def apply(
        self, manifest: Manifest, *, manager: str = MANAGER, force: bool = True, subresource: str = ""
    ) -> Manifest:
        """Apply exactly these fields on the server; what `manager` applied before and no longer wants goes.

        Args:
            manifest: the fields.
            manager: who owns them.
            force: take fields over from others, instead of failing with a conflict.
            subresource: such as `status`.

        Raises:
            ConflictError: another manager owns a field and `force` is not set.
        """
        kind = kind_of(manifest)
        path = kind.path(_namespace(manifest), _name(manifest), subresource)
        query = {"fieldManager": manager, "force": str(force).lower()}
        return await self._write("PATCH", kind, path, manifest, query, APPLY)

    async def delete(self, manifest: Manifest) -> None:
        """Delete an object if it is still the one that was read; nothing happens when it is gone."""
        kind = kind_of(manifest)
        path = kind.path(_namespace(manifest), _name(manifest))
        exactly = {"preconditions": {"uid": manifest["metadata"]["uid"]}, "propagationPolicy": "Background"}
        try:
            await self._write("DELETE", kind, path, exactly)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server knows a kind."""
        path = kind.path("-").partition("/namespaces/")[0]
        try:
            known = await self._request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return any(resource["name"] == kind.plural for resource in known["resources"])

    async def _write(
        self,
        method: str,
        kind: Kind,
        path: str,
        body: Manifest,
        query: Mapping[str, str] | None = None,
        content_type: str = _JSON,
    ) -> Manifest:
        self.wrote(method.lower(), kind)
        return await self._request(method, path, body=body, query=query, content_type=content_type)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: Manifest | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = _JSON,
    ) -> Manifest:
        status, answer = await self._send(method, path, body, query, content_type)
        if status == 401:
            self._info = None
            status, answer = await self._send(method, path, body, query, content_type)
        if status >= 400:
            raise _error(status, answer)
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        body: Manifest | None,
        query: Mapping[str, str] | None,
        content_type: str,
    ) -> tuple[int, Manifest]:
        info = self._logged_in()
        headers = {**info.as_http_headers(), "Content-Type": content_type, "Accept": _JSON}
        data = None if body is None else json.dumps(body)
        try:
            async with self.session.request(
                method, info.server.rstrip("/") + path, params=query, data=data, headers=headers
            ) as response:
                return response.status, _decoded(await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnreachableError(f"{method} {path}: {error or type(error).__name__}") from error

    def _logged_in(self) -> kopf.ConnectionInfo:
        now = time.monotonic()
        if self._info is None or now - self._login_at > _LOGIN_SECONDS:
            self._info, self._login_at = self.login(), now
        return self._info


def _decoded(body: bytes) -> Manifest:
    try:
        answer = json.loads(body)
    except ValueError:
        return {"message": body[:200].decode(errors="replace")}
    return answer if isinstance(answer, dict) else {}


def _error(status: int, answer: Mapping[str, Any]) -> ApiError:
    kinds = {400: InvalidObjectError, 409: ConflictError, 422: InvalidObjectError}
    reason, message = answer.get("reason") or "Error", answer.get("message") or "no message"
    kind = InvalidObjectError if message.startswith(_NO_SUCH_OBJECT) else kinds.get(status, ApiError)
    return kind(status, reason, message)


def _typed(kind: Kind, item: Manifest) -> Manifest:
    """Items of a list do not say what they are."""
    return {**item, "apiVersion": kind.api_version, "kind": kind.name}


def _name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


def _namespace(manifest: Manifest) -> str:
    return str(manifest["metadata"]["namespace"])
