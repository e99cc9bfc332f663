"""kopf's part: it watches, and every event becomes news about one deployment.

Only `on.event` handlers: the others would write finalizers and annotations into objects. Handlers decide
nothing and write nothing.
"""

import dataclasses
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Protocol

import kopf

from .cluster import Login
from .kinds import CHILDREN, POD, RESOURCE, Kind
from .observe import MANAGED_SELECTOR
from .plan.objects import DEPLOYMENT_LABEL
from .reconcile import Key

_PAUSES: Final = (1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0)
_LAST_PAUSE: Final = 20.0
_SERVER_SECONDS: Final = 600


Handler = Callable[..., Awaitable[None]]
"""kopf runs plain functions in threads; these run in the event loop."""


class News(Protocol):
    """Where news go."""

    def add(self, key: Key, *, urgent: bool = False) -> None:
        """Note news about a deployment; urgent news make up for earlier failures."""


class NothingKept(kopf.DiffBaseStorage):
    """kopf would copy every object of every event, to find changes for handlers that are not there."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return what is to be compared: nothing."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Return what was compared last: nothing."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""


class Pauses:
    """Seconds between the tries of one request of kopf's, without an end.

    kopf ends the whole operator when it gives a request up. A right that is missing in one namespace must not
    end the work in all others; when nothing answers any more, the lost Lease ends it.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(_PAUSES, itertools.repeat(_LAST_PAUSE))


def registry(news: News, login: Login) -> kopf.OperatorRegistry:
    """Return the handlers that feed `news`."""
    handlers = kopf.OperatorRegistry()
    kopf.on.login(registry=handlers, id="login")(_login_handler(login))
    _watch(handlers, RESOURCE, _resource_handler(news))
    for kind in (*CHILDREN, POD):
        _watch(handlers, kind, _child_handler(news))
    return handlers


def settings() -> kopf.OperatorSettings:
    """Return kopf's settings: nothing is written, and only our own objects are watched."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    # Neither namespaces nor CRDs are watched, so a namespaced Role is enough.
    chosen.scanning.disabled = True
    chosen.peering.standalone = True
    chosen.persistence.diffbase_storage = NothingKept()
    chosen.networking.error_backoffs = Pauses()
    chosen.networking.request_timeout = 60.0
    chosen.networking.connect_timeout = 5.0
    chosen.watching.server_timeout = _SERVER_SECONDS
    for kind in (*CHILDREN, POD):
        chosen.watching.label_selectors[(kind.group, kind.version, kind.plural)] = MANAGED_SELECTOR
    return chosen


def login_once() -> kopf.ConnectionInfo:
    """Return how to reach the API server: as a pod's service account, or by kubeconfig.

    Raises:
        kopf.LoginError: there is neither.
    """
    log, chosen = logging.getLogger(__name__), kopf.OperatorSettings()
    info = kopf.login_with_service_account(logger=log, settings=chosen)
    if info is not None:
        return dataclasses.replace(info, server=_server_of_pods(os.environ) or info.server)
    # The client library understands every kubeconfig, exec plugins included; a pod need not load it.
    info = kopf.login_via_client(logger=log, settings=chosen)
    if info is None:
        raise kopf.LoginError("neither a service account nor a kubeconfig")
    return info


def _server_of_pods(environment: Mapping[str, str]) -> str | None:
    """Return the address that the kubelet gives to pods: it is there before cluster DNS is."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if not host or not port:
        return None
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _login_handler(login: Login) -> Callable[..., kopf.ConnectionInfo]:
    def log_in(**_: Any) -> kopf.ConnectionInfo:
        return login()

    return log_in


def _watch(handlers: kopf.OperatorRegistry, kind: Kind, handler: Handler) -> None:
    decorate = kopf.on.event(kind.group, kind.version, kind.plural, registry=handlers, id=kind.plural)
    decorate(handler)


def _resource_handler(news: News) -> Handler:
    generations: dict[Key, tuple[str, int]] = {}

    async def resource_event(*, type: str | None, meta: Mapping[str, Any], **_: Any) -> None:
        key = (meta["namespace"], meta["name"])
        seen = (meta["uid"], meta.get("generation", 0))
        urgent = generations.get(key) != seen
        generations[key] = seen
        if type == "DELETED":
            del generations[key]
        news.add(key, urgent=urgent)

    return resource_event


def _child_handler(news: News) -> Handler:
    async def child_event(*, meta: Mapping[str, Any], **_: Any) -> None:
        name = meta.get("labels", {}).get(DEPLOYMENT_LABEL)
        if name:
            news.add((meta["namespace"], name))

    return child_event
