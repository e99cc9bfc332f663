"""The few calls that the test bed itself makes to its API server."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path

from testbed.errors import TestbedError

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True)
class ApiClient:
    """Speaks JSON to one API server.

    Attributes:
        server: Its URL.
        authority: Path of the certificate that signs its own.
        token: Bearer token of the caller.
    """

    server: str
    authority: Path
    token: str

    def get(self, path: str) -> Mapping[str, object] | None:
        """An object, or None if there is none at that path."""
        try:
            return self._send("GET", path)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise TestbedError(f"GET {path}: {error}") from error

    def merge(self, path: str, patch: Mapping[str, object]) -> None:
        """Change an object by a merge patch."""
        self._patch(path, patch, MERGE_PATCH)

    def apply(self, path: str, manifest: Mapping[str, object]) -> None:
        """Create or change an object by server-side apply."""
        self._patch(f"{path}?fieldManager=testbed&force=true", manifest, APPLY_PATCH)

    def ready(self) -> bool:
        """Whether the server says that it is ready."""
        try:
            with self._open("GET", "/readyz") as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _patch(self, path: str, body: Mapping[str, object], content_type: str) -> None:
        try:
            self._send("PATCH", path, body, content_type)
        except urllib.error.HTTPError as error:
            raise TestbedError(f"PATCH {path}: {error}: {error.read().decode()}") from error

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        content_type: str = "application/json",
    ) -> Mapping[str, object]:
        with self._open(method, path, body, content_type) as answer:
            decoded: Mapping[str, object] = json.load(answer)
        return decoded

    def _open(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        content_type: str = "application/json",
    ) -> HTTPResponse:
        request = urllib.request.Request(
            self.server + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": content_type},
        )
        context = ssl.create_default_context(cafile=str(self.authority))
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        # The machine's proxy settings are not for a server on the machine itself.
        answer: HTTPResponse = urllib.request.build_opener(*handlers).open(request, timeout=5)
        return answer
