"""One round for one deployment: observe, plan, apply; then the status, after errors too."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from .api import MultimodalDisaggDeployment, ResourceError, load_deployment
from .apply import Applied, Changes, Failure, Identity, changes, controller, execute, identity
from .cluster import Cluster
from .drift import drifted
from .errors import ApiError
from .kinds import DEPLOYMENT, SECRET
from .observe import Observation, find, observe
from .plan.objects import (
    MANAGER,
    Images,
    Manifest,
    Seen,
    is_stage_token,
    objects,
    stage_token_secret,
    with_images,
)
from .plan.site import stage_token_name
from .queue import Pace, Result
from .reasons import Reason
from .roles import role_views
from .status import View, invalid_status, status_json, status_of, unseen_status, written_status

Key = tuple[str, str]
"""Namespace and name of a resource."""

_logger = logging.getLogger(__name__)

SECRET_POLL_SECONDS: Final = 15.0
"""Secrets of users are not watched; a missing one is looked for this often."""


@dataclass
class Reconciler:
    """Brings deployments to what their resources say.

    Attributes:
        cluster: where they run.
        images: default images.
        now: the time.
        new_token: makes a stage token of at least 32 characters.
        refused_for: how long what the API server refused is not tried again. It may not have been the
            object's fault: an admission policy may have changed since.
    """

    cluster: Cluster
    images: Images
    now: Callable[[], datetime]
    new_token: Callable[[], str]
    refused_for: timedelta = timedelta(seconds=Pace.resync)
    _refused: dict[Key, dict[Identity, tuple[Failure, datetime]]] = field(default_factory=dict)

    async def reconcile(self, key: Key) -> Result:
        """Do one round.

        Raises:
            ApiError: the API server refuses to tell what there is, or to take the status.
            UnreachableError: the API server does not answer.
        """
        resource = await find(self.cluster, *key)
        if resource is None:
            self._refused.pop(key, None)
            return Result(gone=True)
        try:
            observed = await observe(self.cluster, resource)
        except ApiError as error:
            if error.status == 403:
                await self._write_unseen(resource, error)
            raise
        try:
            wish = with_images(load_deployment(observed.resource), self.images)
        except ResourceError as error:
            await self._write_invalid(observed, error)
            return Result()
        applied = await self._apply(key, wish, observed)
        await self._write_status(wish, observed, applied)
        return _again(observed, applied)

    async def _apply(self, key: Key, wish: MultimodalDisaggDeployment, observed: Observation) -> Applied:
        token = await self._stage_token(wish, observed)
        if isinstance(token, Failure):
            return Applied({}, (token,))
        wanted = objects(wish, Seen(token["metadata"]["uid"], observed.revisions))
        todo = changes(wanted, observed)
        _tell(key, todo)
        applied = await self._execute(key, todo)
        for failure in applied.failures:
            _logger.warning("%s/%s: %s", *key, failure)
        return applied

    async def _execute(self, key: Key, todo: Changes) -> Applied:
        now = self.now()
        lately = {
            who: (failure, at)
            for who, (failure, at) in self._refused.get(key, {}).items()
            if now - at < self.refused_for
        }
        applied = await execute(self.cluster, todo, {who: failure for who, (failure, _) in lately.items()})
        self._refused[key] = {
            failure.identity: before
            if (before := lately.get(failure.identity)) and before[0] == failure
            else (failure, now)
            for failure in applied.failures
            if failure.terminal
        }
        return applied

    async def _stage_token(
        self, wish: MultimodalDisaggDeployment, observed: Observation
    ) -> Manifest | Failure:
        """Made once; two operators that both try are settled by the API server."""
        found, who = observed.stage_token, (SECRET.name, stage_token_name(wish.metadata.name))
        try:
            if found is None:
                found = await self.cluster.create(stage_token_secret(wish, self.new_token()))
        except ApiError as error:
            return Failure(who, Reason.APPLY_FAILED, str(error))
        owner = controller(found)
        if owner not in (None, wish.metadata.uid):
            return Failure(
                who, Reason.NAME_CONFLICT, f"belongs to another owner (uid {owner}); it must go first"
            )
        if is_stage_token(found):
            return found
        return Failure(who, Reason.NAME_CONFLICT, "holds no stage token; delete it")

    async def _write_status(
        self, wish: MultimodalDisaggDeployment, observed: Observation, applied: Applied
    ) -> None:
        # A Deployment that could not be changed still runs what it ran before.
        live = {**_present(observed), **applied.live}
        workloads = {name: one for (kind, name), one in live.items() if kind == DEPLOYMENT.name}
        roles = role_views(wish, workloads, observed.pods, observed.missing_secret)
        view = View(wish, roles, applied.failures)
        status = status_of(view, written_status(observed.resource), self.now())
        await self._write(observed.resource, status_json(status))

    async def _write_unseen(self, resource: Manifest, error: ApiError) -> None:
        generation = resource["metadata"].get("generation", 0)
        status = unseen_status(str(error), written_status(resource), generation, self.now())
        await self._write(resource, status_json(status))

    async def _write_invalid(self, observed: Observation, error: ResourceError) -> None:
        generation = observed.resource["metadata"].get("generation", 0)
        previous = written_status(observed.resource)
        status = invalid_status(
            error.problems, previous, generation, self.now(), has_pods=bool(observed.pods)
        )
        await self._write(observed.resource, status_json(status))

    async def _write(self, resource: Manifest, status: Manifest) -> None:
        metadata = {name: resource["metadata"][name] for name in ("name", "namespace")}
        wanted = {
            "apiVersion": resource["apiVersion"],
            "kind": resource["kind"],
            "metadata": metadata,
            "status": status,
        }
        if not drifted(wanted, resource, MANAGER, "status"):
            return
        try:
            await self.cluster.apply(wanted, subresource="status")
        except ApiError as error:
            if error.status != 404:
                raise


def _present(observed: Observation) -> dict[Identity, Manifest]:
    return {identity(one): one for one in observed.children.get(DEPLOYMENT) or ()}


def _tell(key: Key, todo: Changes) -> None:
    written = (("applies", [change.wanted for change in todo.apply]), ("deletes", todo.delete))
    for word, manifests in written:
        if manifests:
            names = ", ".join(" ".join(identity(one)) for one in manifests)
            _logger.info("%s/%s: %s %s", *key, word, names)


def _again(observed: Observation, applied: Applied) -> Result:
    failed = any(not failure.terminal for failure in applied.failures)
    waits = observed.missing_secret is not None
    return Result(failed=failed, after=SECRET_POLL_SECONDS if waits else None)
