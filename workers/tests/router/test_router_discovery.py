"""Following the API server: what changes arrives, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import logging
import ssl
import subprocess
from pathlib import Path

import aiohttp
import certifi
import pytest
from fake_api_server import NAMESPACE, PATH, FakeApiServer, endpoint, manifest
from waiting import eventually

from mmdisagg_workers.router import api_server, discovery
from mmdisagg_workers.router.api_server import Access, ApiServer, ApiServerError
from mmdisagg_workers.router.discovery import Backoff, Discovery
from mmdisagg_workers.router.engines import DiscoveredEngines
from mmdisagg_workers.router.errors import NotReadyError
from mmdisagg_workers.router.settings import SettingsError
from mmdisagg_workers.router.slices import selector


class Follower:
    """Discovery at work, and what it has told."""

    def __init__(self, server: FakeApiServer, account, session: aiohttp.ClientSession) -> None:
        self.api = server
        self.account = account
        self.engines = DiscoveredEngines(None)
        self.told = 0
        access = Access(server.url, account, None)
        self.discovery = Discovery(
            ApiServer(access, session), access.namespace, "demo", self.engines, self._told, Backoff(0.02, 0.1)
        )

    def _told(self) -> None:
        self.told += 1

    @property
    def hosts(self) -> set[str]:
        return {one.url.removeprefix("http://").removesuffix(":8000") for one in self.engines.endpoints}

    async def sees(self, *hosts: str) -> None:
        await eventually(lambda: self.hosts == set(hosts))

    async def watches(self) -> None:
        await eventually(lambda: self.api.watching)


@pytest.fixture
async def following(tmp_path):
    api = FakeApiServer()
    await api.start()
    (tmp_path / "token").write_text(api.token)
    (tmp_path / "namespace").write_text(NAMESPACE + "\n")
    async with aiohttp.ClientSession() as session:
        follower = Follower(api, tmp_path, session)
        task = asyncio.create_task(follower.discovery.run())
        yield follower
        assert not task.done(), task
        task.cancel()
        await asyncio.wait([task])
    await api.stop()


def decode(name: str, *hosts: str, **conditions: bool):
    return manifest(name, "decode", "r1", *(endpoint(host, **conditions) for host in hosts))


async def test_what_is_there_is_listed_and_what_changes_is_watched(following):
    await following.watches()
    await following.api.put(decode("a", "10.0.0.1"))
    await following.sees("10.0.0.1")
    await following.api.put(decode("b", "10.0.0.2", "10.0.0.3"))
    await following.sees("10.0.0.1", "10.0.0.2", "10.0.0.3")
    await following.api.put(decode("b", "10.0.0.3"))
    await following.sees("10.0.0.1", "10.0.0.3")
    await following.api.delete("a")
    await following.sees("10.0.0.3")
    await following.api.put(decode("b", "10.0.0.3", ready=False, serving=True, terminating=True))
    await following.sees()
    assert following.api.lists == 1
    assert len(following.api.watches) == 1


async def test_a_watch_that_the_server_ends_goes_on_where_it_was(following, monkeypatch):
    monkeypatch.setattr(discovery, "SHORT_WATCH_SECONDS", 0.0)
    await following.watches()
    await following.api.put(decode("a", "10.0.0.1"))
    await following.sees("10.0.0.1")
    await following.api.bookmark()
    told = following.told

    await following.api.end_watches()
    await eventually(lambda: len(following.api.watches) == 2)

    assert following.api.lists == 1
    assert following.api.watches[-1]["resourceVersion"] == str(following.api.version)
    assert following.told == told
    await following.api.put(decode("a", "10.0.0.2"))
    await following.sees("10.0.0.2")


async def test_watches_are_bounded_and_ask_for_bookmarks(following):
    await following.watches()

    wanted = following.api.watches[0]
    assert wanted["allowWatchBookmarks"] == "true"
    assert int(wanted["timeoutSeconds"]) == api_server.WATCH_SECONDS


async def test_a_server_that_ends_watches_at_once_is_not_hammered(following):
    await following.watches()

    await following.api.end_watches()

    await eventually(lambda: following.api.lists == 2)


async def test_a_version_that_is_gone_is_listed_again(following):
    await following.watches()
    following.api.compact()
    following.api.slices["a"] = decode("a", "10.0.0.1")
    following.api.version += 5
    following.api.oldest = following.api.version

    following.api.reset()

    await following.sees("10.0.0.1")


async def test_410_on_a_watch_means_list_again(following, monkeypatch):
    monkeypatch.setattr(discovery, "SHORT_WATCH_SECONDS", 0.0)
    await following.watches()
    following.api.version += 5
    following.api.compact()

    await following.api.end_watches()
    await eventually(lambda: following.api.lists >= 2)
    following.api.oldest = 0

    await following.watches()
    await following.api.put(decode("a", "10.0.0.1"))
    await following.sees("10.0.0.1")


async def test_a_broken_connection_is_listed_again_and_what_was_missed_is_seen(following):
    await following.watches()
    await following.api.put(decode("a", "10.0.0.1"))
    await following.sees("10.0.0.1")

    following.api.slices = {"b": decode("b", "10.0.0.2")}
    following.api.reset()

    await following.sees("10.0.0.2")


async def test_engines_stay_known_while_the_api_server_is_away(following):
    await following.api.put(decode("a", "10.0.0.1"))
    await following.sees("10.0.0.1")
    port = int(following.api.url.rpartition(":")[2])

    await following.api.stop()
    await eventually(lambda: "cannot be reached" in following.engines.problem)
    assert following.hosts == {"10.0.0.1"}
    await following.api.start(port)

    await following.watches()
    await following.api.put(decode("a", "10.0.0.2"))
    await following.sees("10.0.0.2")


async def test_a_token_that_is_replaced_is_used_from_then_on(following):
    await following.watches()
    (following.account / "token").write_text("token-2\n")
    following.api.token = "token-2"

    following.api.reset()

    await eventually(lambda: following.api.tokens[-1] == "Bearer token-2")
    await following.watches()
    assert following.api.tokens.count("Bearer token-1") == 2


async def test_a_refusal_is_logged_and_is_the_reason_until_there_is_an_answer(following, caplog):
    caplog.set_level(logging.WARNING)
    following.api.refuses = 403
    following.api.reset()
    fresh = DiscoveredEngines(None)
    following.discovery._engines = fresh

    await eventually(lambda: "403" in fresh.problem)

    with pytest.raises(NotReadyError, match=r"403.*forbidden"):
        fresh.serving()
    assert "discovery: the API server answered 403" in caplog.text
    following.api.refuses = 0
    await following.watches()
    with pytest.raises(NotReadyError, match="no ready engine"):
        fresh.serving()


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"items":[]}', b"\xff", b'{"metadata":{}}'])
async def test_an_answer_that_is_no_list_is_tried_again(following, monkeypatch, answer):
    await following.watches()
    original = following.discovery._server.list
    broken = iter([answer])

    async def list_once(path, selector):
        return next(broken, None) or await original(path, selector)

    monkeypatch.setattr(following.discovery._server, "list", list_once)
    following.api.slices = {"a": decode("a", "10.0.0.1")}
    following.api.reset()

    await following.sees("10.0.0.1")


@pytest.mark.parametrize("event", [{"type": "ADDED", "object": 5}, {"type": "ADDED"}, {"nonsense": 1}, []])
async def test_an_event_that_is_none_is_an_error_after_which_all_is_listed(following, event):
    await following.watches()
    lists = following.api.lists
    async with following.api._news:
        following.api.version += 1
        following.api.events.append((following.api.version, event))
        following.api._news.notify_all()

    await eventually(lambda: following.api.lists > lists)


async def test_a_slice_larger_than_any_line_is_read(following):
    hosts = [f"10.1.{i // 250}.{i % 250}" for i in range(1000)]
    await following.watches()

    await following.api.put(decode("a", *hosts))

    await following.sees(*hosts)


def test_pauses_double_up_to_the_longest_and_start_anew_after_success():
    backoff = Backoff(1.0, 5.0, chance=lambda: 1.0)

    assert [backoff.pause() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    backoff.reset()
    assert backoff.pause() == 1.0


def test_pauses_are_cut_short_by_chance_by_half_at_most():
    assert Backoff(1.0, 5.0, chance=lambda: 0.0).pause() == 0.5


# -- where a pod finds its API server ----------------------------------------------------------------


@pytest.fixture
def account(tmp_path):
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "namespace").write_text("vision")
    (tmp_path / "ca.crt").write_bytes(Path(certifi.where()).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("host", "url"), [("10.96.0.1", "https://10.96.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")]
)
def test_a_pod_knows_its_api_server(account, host, url):
    access = Access.in_pod({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"}, account)

    assert (access.url, access.namespace, access.token) == (url, "vision", "t")
    assert access.tls is not None
    assert access.tls.check_hostname


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_pod_without_a_service_account_cannot_discover(account, missing):
    (account / missing).unlink()

    with pytest.raises(SettingsError, match=missing):
        Access.in_pod({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, account)


def certificate(directory: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 that is its own authority, and its key."""
    made, key = directory / "made.crt", directory / "made.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "1", "-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-out", str(made), "-keyout", str(key)),
        ],
        check=True,
        capture_output=True,
    )
    return made, key


@pytest.mark.parametrize("trusted", [True, False])
async def test_only_the_clusters_own_authority_is_trusted(account, trusted):
    made, key = certificate(account)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(made, key)
    if trusted:
        (account / "ca.crt").write_bytes(made.read_bytes())
    api = FakeApiServer()
    api.token = "t"
    await api.start(tls=tls)
    host, port = api.url.removeprefix("http://").split(":")
    pod = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    try:
        async with aiohttp.ClientSession() as session:
            server = ApiServer(Access.in_pod(pod, account), session)
            if trusted:
                assert b'"items"' in await server.list(PATH, selector("demo"))
            else:
                with pytest.raises(ApiServerError, match="certificate"):
                    await server.list(PATH, selector("demo"))
                assert api.tokens == []
    finally:
        await api.stop()
