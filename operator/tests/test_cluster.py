"""The few calls, over real HTTP."""

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from emulator import ApiServer, refusal, serving

from mmdisagg_operator.cluster import Cluster
from mmdisagg_operator.errors import ApiError, ConflictError, InvalidObjectError, UnreachableError
from mmdisagg_operator.kinds import CHILDREN, DEPLOYMENT, LEASE, POD, RESOURCE, Kind, kind_of

SERVICE = CHILDREN[1]
BUDGET = next(kind for kind in CHILDREN if kind.name == "PodDisruptionBudget")


def service(name="s", **spec):
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "ns", "labels": {"a": "1"}},
        "spec": spec or {"x": 1},
    }


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (POD, "/api/v1/namespaces/ns/pods/x/status"),
        (DEPLOYMENT, "/apis/apps/v1/namespaces/ns/deployments/x/status"),
        (RESOURCE, "/apis/mmdisagg.io/v1alpha1/namespaces/ns/multimodaldisaggdeployments/x/status"),
    ],
)
def test_paths(kind, path):
    assert kind.path("ns", "x", "status") == path
    assert kind.path("ns") == path.removesuffix("/x/status")


def test_a_kind_is_found_by_what_an_object_says():
    assert kind_of({"apiVersion": "apps/v1", "kind": "Deployment"}) is DEPLOYMENT
    with pytest.raises(KeyError):
        kind_of({"apiVersion": "v1", "kind": "Node"})


async def test_objects_are_made_found_and_deleted():
    api = ApiServer()
    async with serving(api) as (cluster, _):
        assert await cluster.get(SERVICE, "ns", "s") is None
        made = await cluster.create(service())
        assert (await cluster.get(SERVICE, "ns", "s"))["metadata"]["uid"] == made["metadata"]["uid"]
        with pytest.raises(ConflictError):
            await cluster.create(service())
        await cluster.delete(made)
        await cluster.delete(made)
        assert await cluster.get(SERVICE, "ns", "s") is None


async def test_only_the_object_that_was_read_is_deleted():
    api = ApiServer()
    async with serving(api) as (cluster, _):
        made = await cluster.create(service())
        made["metadata"]["uid"] = "another"
        await cluster.delete(made)
        assert api.names(SERVICE) == {"s"}


async def test_lists_are_by_label_and_say_what_their_items_are():
    api = ApiServer()
    async with serving(api) as (cluster, _):
        await cluster.create(service("one"))
        other = service("two")
        other["metadata"]["labels"] = {"a": "2"}
        await cluster.create(other)
        (found,) = await cluster.list(SERVICE, "ns", {"a": "1"})
        assert (found["metadata"]["name"], found["kind"], found["apiVersion"]) == ("one", "Service", "v1")


async def test_lists_come_in_pages():
    pages = {"": (["a", "b"], "next"), "next": (["c"], "")}

    async def answer(request):
        names, following = pages[request.query.get("continue", "")]
        items = [{"metadata": {"name": name}} for name in names]
        return web.json_response({"metadata": {"continue": following}, "items": items})

    async with answering(answer) as cluster:
        found = await cluster.list(SERVICE, "ns", {})
        assert [one["metadata"]["name"] for one in found] == ["a", "b", "c"]


async def test_a_cluster_may_lack_an_optional_kind_and_no_other():
    async with serving(ApiServer(absent=frozenset({BUDGET.plural, SERVICE.plural}))) as (cluster, _):
        assert await cluster.list(BUDGET, "ns", {}) is None
        with pytest.raises(ApiError):
            await cluster.list(SERVICE, "ns", {})


async def test_a_version_that_was_not_read_is_not_replaced():
    async with serving(ApiServer()) as (cluster, _):
        made = await cluster.create(service())
        changed = await cluster.replace({**made, "spec": {"x": 2}})
        assert changed["spec"] == {"x": 2}
        with pytest.raises(ConflictError):
            await cluster.replace({**made, "spec": {"x": 3}})


async def test_kinds_that_the_api_server_knows():
    async with serving(ApiServer(absent=frozenset({RESOURCE.plural}))) as (cluster, _):
        assert await cluster.serves(DEPLOYMENT)
        assert not await cluster.serves(RESOURCE)
        assert not await cluster.serves(Kind("apps/v1", "Other", "others"))
    api = ApiServer()
    api.fault = lambda *_: refusal(500, "InternalError", "down")
    async with serving(api) as (cluster, _):
        with pytest.raises(ApiError):
            await cluster.serves(RESOURCE)


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, InvalidObjectError), (422, InvalidObjectError), (409, ConflictError), (500, ApiError)],
)
async def test_answers_that_are_no_success(status, error):
    api = ApiServer()
    api.fault = lambda *_: refusal(status, "Because", "of this")
    async with serving(api) as (cluster, _):
        with pytest.raises(error) as raised:
            await cluster.apply(service())
        assert (raised.value.status, raised.value.reason, raised.value.message) == (
            status,
            "Because",
            "of this",
        )


async def test_an_answer_that_is_no_json_is_an_error_with_its_text():
    async def answer(_):
        return web.Response(status=502, text="<html>bad gateway")

    async with answering(answer) as cluster:
        with pytest.raises(ApiError, match="bad gateway"):
            await cluster.get(SERVICE, "ns", "s")


async def test_a_reset_connection_is_an_error_of_its_own():
    async def answer(request):
        request.transport.abort()
        return web.Response()

    async with answering(answer) as cluster:
        with pytest.raises(UnreachableError, match="GET /api/v1/namespaces/ns/services/s"):
            await cluster.get(SERVICE, "ns", "s")


async def test_expired_credentials_are_renewed_once():
    tokens, seen = iter(["old", "new", "newer"]), []

    async def answer(request):
        seen.append(request.headers["Authorization"])
        return refusal(401, "Unauthorized", "no") if len(seen) == 1 else web.json_response({})

    async with answering(answer, lambda: next(tokens)) as cluster:
        await cluster.get(SERVICE, "ns", "s")
    assert seen == ["Bearer new", "Bearer newer"]


async def test_writes_are_counted_and_reads_are_not():
    wrote = []
    async with serving(ApiServer(), lambda verb, kind: wrote.append((verb, kind.name))) as (cluster, _):
        made = await cluster.create(service())
        await cluster.list(SERVICE, "ns", {})
        await cluster.apply(service())
        await cluster.delete(made)
        assert await cluster.get(LEASE, "ns", "x") is None
    assert wrote == [("post", "Service"), ("patch", "Service"), ("delete", "Service")]


class answering:
    """A cluster whose API server is one handler."""

    def __init__(self, handler, token=lambda: "t"):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        self.server, self.token = TestServer(app), token

    async def __aenter__(self):
        await self.server.start_server()
        self.connection = Cluster.connect(self.login)
        return await self.connection.__aenter__()

    async def __aexit__(self, *error):
        await self.connection.__aexit__(*error)
        await self.server.close()

    def login(self):
        return kopf.ConnectionInfo(server=str(self.server.make_url("")), token=self.token())


async def test_an_object_that_its_kinds_schema_does_not_allow_is_wrong_whatever_the_status():
    api = ApiServer()
    said = (
        "failed to create typed patch object (ns/s; /v1, Kind=Service): .spec.x: field not declared in schema"
    )
    api.fault = lambda *_: refusal(500, "", said)
    async with serving(api) as (cluster, _):
        with pytest.raises(InvalidObjectError, match="not declared"):
            await cluster.apply(service())
    api.fault = lambda *_: refusal(500, "InternalError", "etcd leader changed")
    async with serving(api) as (cluster, _):
        with pytest.raises(ApiError) as failed:
            await cluster.apply(service())
        assert not isinstance(failed.value, InvalidObjectError)
