"""Health and metrics over HTTP, on every operator, whether it works or waits for the Lease."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from .metrics import OperatorMetrics


@asynccontextmanager
async def probe_server(metrics: OperatorMetrics, port: int | None) -> AsyncIterator[None]:
    """Serve `/healthz` and `/metrics` for the block.

    Args:
        metrics: what to show.
        port: TCP port on all addresses; nothing is served where None.
    """
    if port is None:
        yield
        return
    app = web.Application()
    app.router.add_get("/healthz", _healthy)
    app.router.add_get("/metrics", _text_of(metrics))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104 - a pod's only way to be reached
        yield
    finally:
        await runner.cleanup()


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def _text_of(metrics: OperatorMetrics) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def show(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    return show
