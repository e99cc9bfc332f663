"""The operator as it runs: Lease, kopf, queue and rounds together, against the API server in memory."""

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice

import aiohttp
import kopf
import pytest
from aiohttp.test_utils import unused_port
from documents import with_volume
from emulator import ApiServer, refusal, serving
from pods import run_everything

from mmdisagg_operator import main, watch
from mmdisagg_operator.kinds import CHILDREN, DEPLOYMENT, LEASE, POD, RESOURCE
from mmdisagg_operator.lease import Lease
from mmdisagg_operator.plan.objects import Images
from mmdisagg_operator.settings import Settings, parse, settings_from

SETTINGS = Settings(images=Images("worker:1", "router:1"), port=None, resync=0.2)
CLAIM = next(kind for kind in CHILDREN if kind.name == "PersistentVolumeClaim")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(main, "_CRD_RETRY_SECONDS", 0.05)
    logging.getLogger("kopf").setLevel(logging.ERROR)


@asynccontextmanager
async def running(api, settings=SETTINGS):
    """Run an operator; yields its task, which is told to stop in the end."""
    chosen = watch.settings()
    chosen.queueing.exit_timeout = 0.1
    async with serving(api) as (_, login):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(watch, "settings", lambda: chosen)
            task = asyncio.create_task(main.operate(settings, login))
            try:
                yield task
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def until(condition, limit=20.0):
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.02)


def wish(api, change=None, name="demo", namespace="ns"):
    made = with_volume(change=change)
    made["metadata"] = {"name": name, "namespace": namespace}
    api.add(made)


def available(api):
    status = (api.find(RESOURCE, "demo") or {}).get("status") or {}
    return next((c["status"] for c in status.get("conditions", ()) if c["type"] == "Available"), None)


async def test_events_alone_bring_a_deployment_to_serve_and_back():
    api = ApiServer()
    async with running(api, replace(SETTINGS, resync=3600)):
        wish(api)
        await until(lambda: len(api.names(DEPLOYMENT)) == 4 and available(api) == "False")
        run_everything(api)
        await until(lambda: available(api) == "True")
        api.delete(DEPLOYMENT, "demo-decode")
        await until(lambda: "demo-decode" in api.names(DEPLOYMENT))
        for pod in api.names(POD):
            api.delete(POD, pod)
        await until(lambda: available(api) == "False")


@pytest.mark.case("c23")
async def test_it_runs_as_a_user_without_a_name(monkeypatch):
    def unknown():
        raise KeyError("getpwuid(): uid not found: 1000650000")

    monkeypatch.setattr("getpass.getuser", unknown)
    api = ApiServer()
    async with running(api):
        wish(api)
        await until(lambda: len(api.names(DEPLOYMENT)) == 4)


async def test_at_rest_nothing_is_written_however_often_it_looks():
    api = ApiServer()
    async with running(api):
        wish(api)
        await until(lambda: len(api.names(DEPLOYMENT)) == 4)
        run_everything(api)
        await until(lambda: available(api) == "True")
        await asyncio.sleep(0.3)
        api.writes.clear()
        await asyncio.sleep(1.0)
        assert api.writes == []


async def test_what_was_there_before_is_taken_up():
    api = ApiServer()
    wish(api)
    async with running(api):
        await until(lambda: len(api.names(DEPLOYMENT)) == 4)


async def test_a_deleted_resource_is_forgotten():
    api = ApiServer()
    async with running(api):
        wish(api)
        await until(lambda: available(api) == "False")
        api.delete(RESOURCE, "demo")
        await asyncio.sleep(0.5)
        api.writes.clear()
        await asyncio.sleep(0.5)
        assert api.writes == []


async def test_a_broken_api_server_is_outlived():
    api, calls = ApiServer(), []

    def now_and_then(method, path):
        calls.append(path)
        broken = method != "GET" and "leases" not in path and len(calls) % 9 == 0
        return refusal(500, "InternalError", "etcd leader changed") if broken else None

    async with running(api) as task:
        wish(api)
        api.fault = now_and_then
        await until(lambda: len(api.names(DEPLOYMENT)) == 4 and api.names(CLAIM))
        api.fault = None
        run_everything(api)
        await until(lambda: available(api) == "True")
        assert not task.done()


async def test_it_waits_for_the_crd():
    api = ApiServer(absent=frozenset({RESOURCE.plural}))
    async with running(api):
        await asyncio.sleep(0.3)
        assert api.all(LEASE) == []
        api.absent = frozenset()
        wish(api)
        await until(lambda: len(api.names(DEPLOYMENT)) == 4)


async def test_it_waits_while_another_works_and_takes_over():
    api = ApiServer()
    async with serving(api) as (cluster, _):
        other = Lease(
            cluster, SETTINGS.lease_namespace, SETTINGS.lease_name, "other", time.monotonic, main.utc_now
        )
        await other.acquire()
        wish(api)
        async with running(api) as task:
            await asyncio.sleep(0.3)
            assert api.names(DEPLOYMENT) == set()
            await other.release()
            await until(lambda: len(api.names(DEPLOYMENT)) == 4)
            assert not task.done()


async def test_who_loses_the_lease_ends():
    api = ApiServer()
    async with running(api) as task:
        wish(api)
        await until(lambda: len(api.names(DEPLOYMENT)) == 4)
        lease = next(live for (kind, *_), live in api.objects.items() if kind is LEASE)
        lease["spec"]["holderIdentity"] = "somebody"
        api._tell("MODIFIED", LEASE, lease)
        assert await asyncio.wait_for(task, 20) is False
        assert lease["spec"]["holderIdentity"] == "somebody"


async def test_a_namespaced_operator_serves_its_namespaces_only():
    api, asked = ApiServer(), []
    api.fault = lambda method, path: asked.append((method, path))
    async with running(api, replace(SETTINGS, namespaces=("ns",))):
        wish(api, namespace="elsewhere")
        wish(api)
        await until(lambda: len(api.names(DEPLOYMENT)) == 4)
        await asyncio.sleep(0.3)
        assert {m["metadata"]["namespace"] for m in api.all(DEPLOYMENT)} == {"ns"}
        reads = {path for method, path in asked if method == "GET" and path.count("/") > 3}
        assert {path for path in reads if "/namespaces/ns/" not in path and "/leases/" not in path} == set()


async def test_health_and_metrics_are_served():
    api, port = ApiServer(), unused_port()
    wish(api)

    async def text(path):
        async with client.get(f"http://127.0.0.1:{port}{path}") as answer:
            return await answer.text()

    async with running(api, replace(SETTINGS, port=port)), aiohttp.ClientSession() as client:
        await until(lambda: available(api) == "False")
        assert await text("/healthz") == "ok"
        await asyncio.sleep(0.3)
        metrics = await text("/metrics")
        assert "mmdisagg_operator_leader 1.0" in metrics
        assert 'mmdisagg_operator_reconciles_total{result="done"}' in metrics
        assert 'mmdisagg_operator_api_writes_total{kind="Deployment",verb="patch"} 4.0' in metrics
        assert "mmdisagg_operator_deployments 1.0" in metrics


def test_kopf_writes_nothing_and_has_event_handlers_only():
    registry = watch.registry(news=None, login=lambda: None)
    chosen = watch.settings()
    assert chosen.posting.enabled is False
    assert chosen.scanning.disabled is True
    assert chosen.peering.standalone is True
    watched = {handler.selector.any_name for handler in registry._watching.get_all_handlers()}
    assert watched == {kind.plural for kind in (RESOURCE, POD, *CHILDREN)}
    for others in (registry._changing, registry._spawning, registry._webhooks, registry._indexing):
        assert list(others.get_all_handlers()) == []


def test_kopf_never_gives_a_request_up():
    pauses = watch.settings().networking.error_backoffs
    for _ in range(2):
        first = list(islice(pauses, 1000))
        assert len(first) == 1000
        assert sum(first[:5]) < 15
        assert max(first) <= 60


async def test_a_right_that_is_missing_in_one_namespace_leaves_the_others_served(monkeypatch):
    api = ApiServer()
    monkeypatch.setattr(watch, "_PAUSES", (0.01,) * 8)
    monkeypatch.setattr(watch, "_LAST_PAUSE", 0.05)
    refused = []

    def closed(_, path):
        if "/namespaces/closed/networkpolicies" not in path:
            return None
        refused.append(path)
        return refusal(403, "Forbidden", "no networkpolicies for you")

    api.fault = closed
    async with running(api, replace(SETTINGS, namespaces=("ns", "closed"))) as task:
        await until(lambda: len(refused) > 15)
        wish(api, namespace="closed")
        wish(api)
        await until(lambda: len(api.names(DEPLOYMENT)) == 4)
        assert {m["metadata"]["namespace"] for m in api.all(DEPLOYMENT)} == {"ns"}
        assert not task.done()


def test_a_pod_logs_in_as_its_service_account_without_dns(monkeypatch):
    account = kopf.ConnectionInfo(server="https://kubernetes.default.svc", token="t")
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert watch.login_once().server == "https://10.0.0.1:443"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert watch.login_once().server == "https://[fd00::1]:443"
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT")
    assert watch.login_once() == account


def test_without_any_credentials_there_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: None)
    monkeypatch.setattr(kopf, "login_via_client", lambda **_: None)
    with pytest.raises(kopf.LoginError, match="neither"):
        watch.login_once()


def test_settings_come_from_the_command_line_and_the_environment():
    given = settings_from(
        parse(["--namespace", "a", "--namespace", "b", "--worker-image", "w", "--resync", "5"]),
        {
            "POD_NAMESPACE": "ops",
            "POD_NAME": "op-1",
            "MMDISAGG_ROUTER_IMAGE": "r",
            "MMDISAGG_WORKER_IMAGE": "x",
        },
    )
    assert given.namespaces == ("a", "b")
    assert (given.lease_namespace, given.identity, given.resync) == ("ops", "op-1", 5.0)
    assert given.images == Images("w", "r")
    bare = settings_from(parse([]), {})
    assert (bare.namespaces, bare.images, bare.lease_name) == ((), Images(), "mmdisagg-operator")


@pytest.mark.parametrize(
    "words", [["--resync", "0"], ["--resync", "nan"], ["--resync", "soon"], ["--workers", "0"], ["--unknown"]]
)
def test_a_wrong_command_line_is_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err
