"""An API server that knows one kind of object: lists, watches, bookmarks, 410, and the ways to break."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

from aiohttp import web

NAMESPACE = "vision"
PATH = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"


def manifest(
    name: str,
    role: str | None,
    revision: str | None,
    *endpoints: dict[str, Any],
    port: int | None = 8000,
    made: str = "2026-01-01T00:00:00Z",
    deployment: str = "demo",
    kind: str = "IPv4",
) -> dict[str, Any]:
    """A slice as the endpoint slice controller writes it, shortened."""
    labels = {
        "kubernetes.io/service-name": name.rpartition("-")[0] or name,
        "mmdisagg.io/deployment": deployment,
        **({"mmdisagg.io/role": role} if role else {}),
        **({"mmdisagg.io/revision": revision} if revision else {}),
    }
    ports = [{"name": "metrics", "port": 9}, {"name": "http", "port": port, "protocol": "TCP"}]
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": made, "generation": 1},
        "addressType": kind,
        "endpoints": list(endpoints) or None,
        "ports": ports if port else None,
    }


def endpoint(host: str, uid: str = "", **conditions: bool) -> dict[str, Any]:
    return {
        "addresses": [host],
        "conditions": conditions or {"ready": True, "serving": True, "terminating": False},
        **({"targetRef": {"kind": "Pod", "name": uid, "uid": uid}} if uid else {}),
        "nodeName": "n1",
    }


class FakeApiServer:
    """Holds slices; each change is a version and an event."""

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.version = 100
        self.oldest = 0
        self.token = "token-1"
        self.refuses = 0
        self.lists = 0
        self.watches: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.url = ""
        self._open: list[web.Request] = []
        self._news = asyncio.Condition()
        self._generation = 0
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        app = web.Application()
        app.router.add_get(PATH, self._get)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True, ssl_context=tls).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            self.reset()
            await self._runner.cleanup()
            self._runner = None

    # -- what happens in the cluster ----------------------------------------------------------------

    async def put(self, one: dict[str, Any]) -> None:
        known = one["metadata"]["name"] in self.slices
        await self._happen("MODIFIED" if known else "ADDED", one)
        self.slices[one["metadata"]["name"]] = one

    async def delete(self, name: str) -> None:
        await self._happen("DELETED", self.slices.pop(name))

    async def bookmark(self) -> None:
        """Send a bookmark as Kubernetes before 1.34 spells it: what has no value is null, not absent."""
        nothing = {
            "metadata": {"creationTimestamp": None},
            "addressType": "",
            "endpoints": None,
            "ports": None,
        }
        await self._happen("BOOKMARK", nothing)

    async def _happen(self, kind: str, one: dict[str, Any]) -> None:
        async with self._news:
            self.version += 1
            one["metadata"]["resourceVersion"] = str(self.version)
            self.events.append((self.version, json.loads(json.dumps({"type": kind, "object": one}))))
            self._news.notify_all()

    # -- what happens to connections ----------------------------------------------------------------

    def compact(self) -> None:
        """Forget old versions, as etcd does."""
        self.events.clear()
        self.oldest = self.version + 1

    def reset(self) -> None:
        """Break every open watch."""
        for request in list(self._open):
            if request.transport is not None:
                request.transport.abort()

    async def end_watches(self) -> None:
        """End every open watch in good order."""
        async with self._news:
            self._generation += 1
            self._news.notify_all()

    @property
    def watching(self) -> bool:
        return bool(self._open)

    # -- the API ------------------------------------------------------------------------------------

    async def _get(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization", "")
        self.tokens.append(token)
        assert "x-mmdisagg-stage-token" not in request.headers
        if token != f"Bearer {self.token}":
            return status(401, "Unauthorized")
        if self.refuses:
            return status(self.refuses, 'endpointslices is forbidden: User "x" cannot list')
        assert request.query["labelSelector"] == "mmdisagg.io/deployment=demo,mmdisagg.io/revision"
        if request.query.get("watch") == "1":
            return await self._watch(request)
        self.lists += 1
        listed = {"metadata": {"resourceVersion": str(self.version)}, "items": list(self.slices.values())}
        return web.json_response(listed)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches.append(dict(request.query))
        version = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if version < self.oldest:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        generation = self._generation
        self._open.append(request)
        try:
            while True:
                async with self._news:
                    news = [event for number, event in self.events if number > version]
                    if not news:
                        if generation != self._generation:
                            return response
                        await self._news.wait()
                        continue
                    version = self.version
                for event in news:
                    line = json.dumps(event).encode() + b"\n"
                    half = len(line) // 2
                    await response.write(line[:half])
                    await response.write(line[half:])
        finally:
            self._open.remove(request)


def status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)
