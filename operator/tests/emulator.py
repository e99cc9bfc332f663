"""A small API server in memory: enough of Kubernetes for the operator to run against, over real HTTP.

It keeps generations, resource versions and managed fields, does server-side apply with conflicts and takes
ownership away from whom an update overrules, lists with label selectors, watches, and can be told to fail.
Its truth is checked where it matters: `e2e/api` runs the same claims against a real API server.
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import kopf
from aiohttp import web
from aiohttp.test_utils import TestServer

from mmdisagg_operator.cluster import Cluster
from mmdisagg_operator.kinds import CHILDREN, LEASE, POD, RESOURCE, SECRET, Kind

KINDS = (RESOURCE, POD, SECRET, LEASE, *CHILDREN)
KIND_OF = {(kind.api_version, kind.plural): kind for kind in KINDS}
EXTRA = {"v1": ["namespaces"], "apiextensions.k8s.io/v1": ["customresourcedefinitions"]}

LIST_KEYS = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
ATOMIC = {"matchLabels", "fieldRef", "secretKeyRef", "roleRef", "podSelector", "selector"}

Path = tuple[str, ...]
Json = dict[str, Any]


def keys_of(name: str, items: list[Any]) -> tuple[str, ...]:
    if name == "ports" and items and isinstance(items[0], Mapping):
        return ("containerPort", "protocol") if "containerPort" in items[0] else ("port", "protocol")
    return LIST_KEYS.get(name, ())


def leaves(value: Any, name: str = "", path: Path = ()) -> Iterator[Path]:
    """Yield the paths that whoever applies `value` owns."""
    if isinstance(value, Mapping) and value and name not in ATOMIC:
        for child, inside in value.items():
            yield from leaves(inside, child, (*path, f"f:{child}"))
    elif isinstance(value, list) and value and keys_of(name, value):
        for item in value:
            key = {part: item[part] for part in sorted(keys_of(name, value))}
            at = (*path, "k:" + json.dumps(key, separators=(",", ":")))
            yield (*at, ".")
            yield from leaves(item, "", at)
    else:
        yield path


def fields_v1(paths: set[Path]) -> Json:
    tree: Json = {}
    for path in sorted(paths):
        node = tree
        for part in path:
            node = node.setdefault(part, {})
    return tree


def child(node: Any, part: str) -> Any:
    """Return what lies at one step of a path, or None."""
    if part == ".":
        return node
    if part.startswith("f:"):
        return node.get(part[2:]) if isinstance(node, dict) else None
    key = json.loads(part[2:])
    return next((item for item in node or () if key.items() <= item.items()), None)


def value_at(node: Any, path: Path) -> Any:
    for part in path:
        node = child(node, part)
    return node


def put(node: Any, path: Path, value: Any) -> None:
    for part, following in itertools.pairwise((*path, "")):
        if part == ".":
            return
        if following == "":
            node[part[2:]] = deepcopy(value)
            return
        inside = child(node, part)
        if inside is None and part.startswith("f:"):
            inside = node[part[2:]] = [] if following.startswith("k:") else {}
        elif inside is None:
            inside = json.loads(part[2:])
            node.append(inside)
        node = inside


def remove(node: Any, path: Path) -> None:
    if path[-1] == ".":
        items, item = value_at(node, path[:-2]), value_at(node, path[:-1])
        if items and item in items:
            items.remove(item)
        return
    parent = value_at(node, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1][2:], None)
        if not parent and path[-2:-1] and path[-2].startswith("f:"):
            remove(node, path[:-1])


def put_in_order(stored: Any, applied: Any, name: str = "") -> None:
    """Bring items of lists with keys into the order in which they were applied, wherever others stand."""
    if isinstance(applied, Mapping) and isinstance(stored, dict):
        for part in applied.keys() & stored.keys():
            put_in_order(stored[part], applied[part], part)
    elif isinstance(applied, list) and applied and keys_of(name, applied):
        keys = [{part: item[part] for part in keys_of(name, applied)} for item in applied]
        mine = [next(item for item in stored if key.items() <= item.items()) for key in keys]
        places = [n for n, item in enumerate(stored) if item in mine]
        for place, item, wanted in zip(places, mine, applied, strict=True):
            stored[place] = item
            put_in_order(item, wanted)


def refusal(status: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": status}
    return web.json_response(body, status=status)


class Refused(Exception):
    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(message)
        self.response = refusal(status, reason, message or reason)


Fault = Callable[[str, str], web.Response | None]
"""Takes method and path; returns an answer instead of the right one, or None."""


@dataclass
class ApiServer:
    """The server's state; use it in tests as the cluster that users and controllers work on."""

    objects: dict[tuple[Kind, str, str], Json] = field(default_factory=dict)
    owners: dict[tuple[Kind, str, str], dict[tuple[str, str], set[Path]]] = field(default_factory=dict)
    log: list[tuple[int, Kind, Json]] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    fault: Fault | None = None
    absent: frozenset[str] = frozenset()
    _version: int = 0
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    # As a user, or as one of Kubernetes' controllers.

    def find(self, kind: Kind, name: str, namespace: str = "ns") -> Json | None:
        found = self.objects.get((kind, namespace, name))
        return None if found is None else self._shown(kind, found)

    def all(self, kind: Kind) -> list[Json]:
        return [self._shown(kind, one) for (other, *_), one in self.objects.items() if other is kind]

    def names(self, kind: Kind) -> set[str]:
        return {one["metadata"]["name"] for one in self.all(kind)}

    def add(self, manifest: Json) -> Json:
        kind = next(k for k in KINDS if (k.api_version, k.name) == (manifest["apiVersion"], manifest["kind"]))
        return self._shown(kind, self._create(kind, manifest["metadata"]["namespace"], manifest, "kubectl"))

    def change(self, kind: Kind, name: str, change: Callable[[Json], None], manager: str = "kubectl") -> None:
        old = self.objects[kind, "ns", name]
        new = deepcopy(old)
        change(new)
        self._update(kind, new, manager)

    def delete(self, kind: Kind, name: str, namespace: str = "ns") -> None:
        gone = self.objects.pop((kind, namespace, name))
        self.owners.pop((kind, namespace, name), None)
        self._tell("DELETED", kind, gone)

    # As a server.

    def _shown(self, kind: Kind, stored: Json) -> Json:
        metadata = stored["metadata"]
        owners = self.owners.get((kind, metadata["namespace"], metadata["name"]), {})
        managed = [
            {
                "manager": manager,
                "operation": operation.partition("/")[0],
                "subresource": operation.partition("/")[2],
                "fieldsV1": fields_v1(paths),
            }
            for (manager, operation), paths in owners.items()
            if paths
        ]
        return deepcopy({**stored, "metadata": {**metadata, "managedFields": managed}})

    def _tell(self, what: str, kind: Kind, stored: Json) -> None:
        self._version += 1
        stored["metadata"]["resourceVersion"] = str(self._version)
        event = {"type": what, "object": self._shown(kind, stored)}
        self.log.append((self._version, kind, event))

        async def wake() -> None:
            async with self._news:
                self._news.notify_all()

        try:
            asyncio.get_running_loop().create_task(wake())
        except RuntimeError:
            return

    def _create(self, kind: Kind, namespace: str, body: Json, manager: str) -> Json:
        where = (kind, namespace, body["metadata"]["name"])
        if where in self.objects:
            raise Refused(409, "AlreadyExists")
        stored = deepcopy(body)
        stored["metadata"] |= {"namespace": namespace, "uid": f"uid-{len(self.log) + 1}", "generation": 1}
        stored["metadata"].setdefault("labels", {})
        self.objects[where] = _defaulted(kind, stored)
        self.owners[where] = {(manager, "Update"): set(_owned(body))}
        self._tell("ADDED", kind, stored)
        return stored

    def _update(self, kind: Kind, new: Json, manager: str) -> Json:
        where = (kind, new["metadata"]["namespace"], new["metadata"]["name"])
        old = self.objects[where]
        if new == old:
            return old
        before, after = set(_owned(old)), set(_owned(new))
        changed = {path for path in after if value_at(old, path) != value_at(new, path)}
        for who, paths in self.owners[where].items():
            if who[0] != manager:
                paths.difference_update(changed | (before - after))
        self.owners[where].setdefault((manager, "Update"), set()).update(changed)
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        self.objects[where] = new
        self._tell("MODIFIED", kind, new)
        return new

    def _apply(self, kind: Kind, namespace: str, body: Json, manager: str, force: bool, sub: str) -> Json:
        where = (kind, namespace, body["metadata"]["name"])
        old = self.objects.get(where)
        if old is None and sub:
            raise Refused(404, "NotFound")
        new = deepcopy(old) or {"metadata": {"name": where[2], "namespace": namespace}}
        mine = (manager, f"Apply/{sub}".rstrip("/"))
        owners = self.owners.setdefault(where, {})
        paths = set(_owned(body))
        others = {who: held for who, held in owners.items() if who != mine}
        taken = {p for p in paths if value_at(new, p) != value_at(body, p) and p[-1] != "."}
        conflicts = {who[0] for who, held in others.items() if held & taken}
        if conflicts and not force:
            raise Refused(409, "Conflict", f"conflict with {sorted(conflicts)}")
        for held in others.values():
            held.difference_update(taken)
        # Whole items first: what is inside them is gone with them.
        for path in sorted(owners.get(mine, set()) - paths, key=lambda gone: (gone[-1] != ".", gone)):
            if not any(path in held for held in others.values()):
                remove(new, path)
        for path in sorted(paths):
            put(new, path, value_at(body, path))
        put_in_order(new, body)
        new |= {"apiVersion": kind.api_version, "kind": kind.name}
        unchanged = old is not None and old == _defaulted(kind, new) and owners.get(mine) == paths
        owners[mine] = paths
        if unchanged:
            return old
        if old is None:
            new["metadata"] |= {"uid": f"uid-{len(self.log) + 1}", "generation": 1}
        elif old.get("spec") != new.get("spec"):
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        self.objects[where] = _defaulted(kind, new)
        self._tell("ADDED" if old is None else "MODIFIED", kind, new)
        return new

    # HTTP.

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        fault = self.fault(request.method, request.path) if self.fault else None
        if fault is not None:
            return fault
        if request.method not in ("GET", "HEAD") and "/leases" not in request.path:
            self.writes.append(f"{request.method} {request.path}")
        try:
            return await self._route(request)
        except Refused as refused:
            return refused.response

    async def _route(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        if len(parts) <= 3 and (len(parts) < 3 or parts[0] == "apis"):
            return web.json_response(self._discovery(parts))
        core = parts[0] == "api"
        version, rest = (parts[1], parts[2:]) if core else ("/".join(parts[1:3]), parts[3:])
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        kind = KIND_OF.get((version, rest[0]))
        if kind is None or kind.plural in self.absent:
            raise Refused(404, "NotFound")
        if len(rest) == 1:
            return await self._collection(request, kind, namespace)
        return await self._item(request, kind, namespace, rest[1], rest[2] if len(rest) > 2 else "")

    def _discovery(self, parts: list[str]) -> Json:
        versions: dict[str, list[Kind]] = {}
        for kind in KINDS:
            if kind.plural not in self.absent:
                versions.setdefault(kind.api_version, []).append(kind)
        if parts == ["api"]:
            return {"versions": ["v1"]}
        if parts == ["apis"]:
            groups = sorted({v for v in (*versions, *EXTRA) if "/" in v})
            return {"groups": [_group(version) for version in groups]}
        version = "/".join(parts[1:])
        if version not in versions and version not in EXTRA:
            raise Refused(404, "NotFound")
        verbs = ["get", "list", "watch", "create", "update", "patch", "delete"]
        found = [
            {
                "name": k.plural,
                "singularName": k.name.lower(),
                "kind": k.name,
                "namespaced": True,
                "verbs": verbs,
            }
            for k in versions.get(version, ())
        ]
        cluster = [
            {"name": name, "singularName": name[:-1], "kind": name, "namespaced": False, "verbs": verbs}
            for name in EXTRA.get(version, ())
        ]
        return {"resources": found + cluster}

    async def _collection(self, request: web.Request, kind: Kind, namespace: str) -> web.StreamResponse:
        if request.method == "POST":
            body = await request.json()
            return web.json_response(self._shown(kind, self._create(kind, namespace, body, "client")))
        if request.query.get("watch") == "true":
            return await self._watch(request, kind, namespace)
        items = [one for one in self.all(kind) if _matches(one, namespace, request.query)]
        return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})

    async def _watch(self, request: web.Request, kind: Kind, namespace: str) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        seen = int(request.query.get("resourceVersion") or self._version)
        while True:
            for version, other, event in list(self.log):
                if version > seen and other is kind and _matches(event["object"], namespace, request.query):
                    await stream.write(json.dumps(event).encode() + b"\n")
            seen = self._version
            async with self._news:
                if self._version == seen:
                    await self._news.wait()

    async def _item(
        self, request: web.Request, kind: Kind, namespace: str, name: str, sub: str
    ) -> web.StreamResponse:
        stored = self.objects.get((kind, namespace, name))
        if request.method == "PATCH":
            body = await request.json()
            force = request.query.get("force") == "true"
            applied = self._apply(kind, namespace, body, request.query["fieldManager"], force, sub)
            return web.json_response(self._shown(kind, applied))
        if stored is None:
            raise Refused(404, "NotFound", f"{kind.plural} {name} not found")
        if request.method == "DELETE":
            wanted = (await request.json())["preconditions"]["uid"]
            if wanted != stored["metadata"]["uid"]:
                raise Refused(409, "Conflict")
            self.delete(kind, name, namespace)
        if request.method == "PUT":
            body = await request.json()
            if body["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]:
                raise Refused(409, "Conflict")
            body["metadata"].pop("managedFields", None)
            stored = self._update(kind, body, "client")
        return web.json_response(self._shown(kind, stored))


def _owned(body: Json) -> Iterator[Path]:
    metadata = {name: body["metadata"][name] for name in _OWNED_METADATA if body["metadata"].get(name)}
    rest = {name: value for name, value in body.items() if name not in ("apiVersion", "kind", "metadata")}
    yield from leaves({"metadata": metadata, **rest} if metadata else rest)


_OWNED_METADATA = ("labels", "annotations", "ownerReferences")


def _defaulted(kind: Kind, stored: Json) -> Json:
    if kind.name == "Deployment":
        stored["spec"].setdefault("replicas", 1)
    return stored


def _matches(one: Json, namespace: str, query: Mapping[str, str]) -> bool:
    if namespace and one["metadata"]["namespace"] != namespace:
        return False
    wanted = [part.partition("=") for part in query.get("labelSelector", "").split(",") if part]
    return all(one["metadata"].get("labels", {}).get(name) == value for name, _, value in wanted)


def _group(version: str) -> Json:
    entry = {"groupVersion": version, "version": version.partition("/")[2]}
    return {"name": version.partition("/")[0], "versions": [entry], "preferredVersion": entry}


@asynccontextmanager
async def serving(api: ApiServer, wrote=lambda verb, kind: None):
    """Yield a cluster that is `api`, and the login to it."""
    server = TestServer(api.application())
    await server.start_server()

    def login() -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=str(server.make_url("")), token="t")

    try:
        async with Cluster.connect(login, wrote) as cluster:
            yield cluster, login
    finally:
        await server.close()
