"""The router's discovery on a real API server, with the rights that the operator gives it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from documents import document
from kube import Kube

from mmdisagg_workers.router import api_server
from mmdisagg_workers.router.api_server import Access, ApiServer
from mmdisagg_workers.router.discovery import Discovery
from mmdisagg_workers.router.engines import DiscoveredEngines

SECONDS = 30.0


@dataclass
class Slices:
    """EndpointSlices as the endpoint slice controller would write them for ready pods."""

    kube: Kube
    namespace: str
    changed: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        return f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"

    async def write(self, name: str, *hosts: str, kind: str = "IPv4", **conditions: bool) -> None:
        labels = {
            "mmdisagg.io/deployment": "demo",
            "mmdisagg.io/role": "decode",
            "mmdisagg.io/revision": "r1",
        }
        made = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": labels},
            "addressType": kind,
            "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
            "endpoints": [{"addresses": [host], "conditions": conditions} for host in hosts],
        }
        known = name in self.changed
        path = f"{self.path}/{name}" if known else self.path
        answer = await asyncio.to_thread(self.kube.request, "PUT" if known else "POST", path, made)
        assert answer.ok, answer.text
        self.changed.append(name)

    async def delete(self, name: str) -> None:
        answer = await asyncio.to_thread(self.kube.request, "DELETE", f"{self.path}/{name}")
        assert answer.ok, answer.text


@asynccontextmanager
async def following(kube: Kube, namespace: str, folder: Path):
    """Discovery at work as the router's service account."""
    account = await asyncio.to_thread(kube.as_account, namespace, "demo-router", folder)
    (folder / "token").write_text(account.token)
    (folder / "namespace").write_text(namespace)
    (folder / "ca.crt").write_bytes(Path(kube.ca).read_bytes())
    host, port = kube.server.removeprefix("https://").rsplit(":", 1)
    access = Access.in_pod({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}, folder)
    engines = DiscoveredEngines(None)
    async with aiohttp.ClientSession() as session:
        server = ApiServer(access, session)
        discovery = Discovery(server, access.namespace, "demo", engines, lambda: None)
        task = asyncio.create_task(discovery.run())
        yield engines
        assert not task.done(), task
        task.cancel()
        await asyncio.wait([task])


async def sees(engines: DiscoveredEngines, *urls: str) -> None:
    async with asyncio.timeout(SECONDS):
        while {endpoint.url for endpoint in engines.endpoints} != set(urls):
            await asyncio.sleep(0.05)


@pytest.fixture
async def slices(operator, deployed) -> Slices:
    """The namespace of a deployment whose pods never get addresses: no kubelet runs here."""

    def made() -> None:
        deployed.wish(document())
        deployed.is_made()

    await asyncio.to_thread(made)
    return Slices(deployed.kube, deployed.namespace)


async def test_the_router_follows_its_slices(slices, tmp_path):
    await slices.write("demo-decode-r1-a", "10.0.0.1")
    async with following(slices.kube, slices.namespace, tmp_path) as engines:
        await sees(engines, "http://10.0.0.1:8000")
        await slices.write("demo-decode-r1-b", "10.0.0.2", "10.0.0.3", ready=True)
        await sees(engines, "http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000")
        await slices.write("demo-decode-r1-b", "10.0.0.3", ready=False, serving=True, terminating=True)
        await sees(engines, "http://10.0.0.1:8000")
        await slices.write("demo-decode-r1-c", "fd00::7", kind="IPv6", ready=True)
        await sees(engines, "http://10.0.0.1:8000", "http://[fd00::7]:8000")
        await slices.delete("demo-decode-r1-a")
        await sees(engines, "http://[fd00::7]:8000")


async def test_watches_that_end_go_on_without_a_gap(slices, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(api_server, "WATCH_SECONDS", 2)
    async with following(slices.kube, slices.namespace, tmp_path) as engines:
        for number in range(12):
            await slices.write("demo-decode-r1-a", f"10.0.0.{number + 1}")
            await sees(engines, f"http://10.0.0.{number + 1}:8000")
            await asyncio.sleep(0.5)
    assert "discovery" not in caplog.text
