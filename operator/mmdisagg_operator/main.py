"""`mmdisagg-operator`: take the Lease, then watch and work, until told to stop or the Lease is lost."""

import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import kopf

from . import watch
from .cluster import Cluster, Login
from .errors import ApiError, UnreachableError
from .kinds import RESOURCE
from .lease import Lease
from .metrics import OperatorMetrics
from .probe_server import probe_server
from .queue import Pace, Schedule, WorkQueue
from .reconcile import Key, Reconciler
from .settings import Settings, parse, settings_from

FAILED: Final = 1
_CRD_RETRY_SECONDS: Final = 5.0

_logger = logging.getLogger(__name__)


async def operate(settings: Settings, login: Login = watch.login_once) -> bool:
    """Run an operator until it is told to stop.

    Args:
        settings: how it runs.
        login: how to reach the API server.

    Returns:
        Whether it was told to stop; otherwise the Lease is lost or a part has ended.
    """
    metrics = OperatorMetrics()
    stop = asyncio.Event()
    _stop_on_signals(stop)
    async with probe_server(metrics, settings.port), Cluster.connect(login, metrics.wrote) as cluster:
        lease = _lease(cluster, settings)
        # The CRD first: nobody renews the Lease before there is something to do.
        if not await _before(stop, _crd_is_there(cluster)) or not await _before(stop, lease.acquire()):
            return True
        metrics.leader.set(1)
        queue = _queue(cluster, settings, metrics)
        kopf_ended = asyncio.create_task(_watch(queue, settings, login, stop), name="kopf")
        try:
            await _work(stop, lease, queue, kopf_ended)
        finally:
            # Others may go on at once: what is left to end here writes nothing.
            await lease.release()
            kopf_ended.cancel()
            await asyncio.gather(kopf_ended, return_exceptions=True)
    return stop.is_set()


async def _work(
    stop: asyncio.Event, lease: Lease, queue: WorkQueue[Key], kopf_ended: asyncio.Task[None]
) -> None:
    """Work until told to stop or a part ends; nothing is being written any more when this returns."""
    own = [
        asyncio.create_task(lease.keep(), name="lease"),
        asyncio.create_task(queue.run(), name="queue"),
        asyncio.create_task(stop.wait(), name="order to stop"),
    ]
    try:
        done, _ = await asyncio.wait({*own, kopf_ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
    for task in done:
        error = task.exception()
        _logger.log(logging.ERROR if error else logging.INFO, "ending: %s (%s)", task.get_name(), error)


def _lease(cluster: Cluster, settings: Settings) -> Lease:
    clock = asyncio.get_running_loop().time
    return Lease(cluster, settings.lease_namespace, settings.lease_name, settings.identity, clock, utc_now)


def _queue(cluster: Cluster, settings: Settings, metrics: OperatorMetrics) -> WorkQueue[Key]:
    reconciler = Reconciler(
        cluster,
        settings.images,
        utc_now,
        lambda: secrets.token_hex(32),
        refused_for=timedelta(seconds=settings.resync),
    )
    schedule: Schedule[Key] = Schedule(Pace(resync=settings.resync))
    clock = asyncio.get_running_loop().time
    queue = WorkQueue(metrics.counted(reconciler.reconcile), clock, schedule, settings.workers)
    metrics.watch_queue(lambda: len(schedule), lambda: schedule.waiting(clock()))
    return queue


async def _watch(queue: WorkQueue[Key], settings: Settings, login: Login, stop: asyncio.Event) -> None:
    """Run kopf; it would end every task that is not its own, and take the signals for itself."""
    tasks = await kopf.spawn_tasks(
        registry=watch.registry(queue, login),
        settings=watch.settings(),
        # kopf would ask for the user's name, which a user id that no password file knows does not have;
        # it does not publish the type.
        identity=cast(Any, settings.identity),
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )
    _stop_on_signals(stop)
    others = asyncio.all_tasks() - set(tasks)
    await kopf.run_tasks(tasks, ignored=others)


def _stop_on_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _before(stop: asyncio.Event, wanted: Coroutine[Any, Any, None]) -> bool:
    """Wait for `wanted`; returns whether it came before the order to stop."""
    waiting, stopping = asyncio.create_task(wanted), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            await waiting
        return waiting.done()
    finally:
        for task in (waiting, stopping):
            task.cancel()
        await asyncio.gather(waiting, stopping, return_exceptions=True)


async def _crd_is_there(cluster: Cluster) -> None:
    """Wait for the CRD: kopf looks at its start which kinds there are, and only then."""
    while not await _serves(cluster):
        _logger.warning("the API server does not know %s yet; install the CRD", RESOURCE.name)
        await asyncio.sleep(_CRD_RETRY_SECONDS)


async def _serves(cluster: Cluster) -> bool:
    try:
        return await cluster.serves(RESOURCE)
    except (ApiError, UnreachableError) as error:
        _logger.warning("%s", error)
        return False


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the operator; the exit status is 1 when it lost its Lease or failed."""
    options = parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("kopf").setLevel(logging.DEBUG if options.verbose else logging.WARNING)
    told = asyncio.run(operate(settings_from(options, os.environ)))
    raise SystemExit(0 if told else FAILED)


if __name__ == "__main__":
    main()
