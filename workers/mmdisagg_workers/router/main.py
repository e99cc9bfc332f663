"""`mmdisagg-router`: the process around the front."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import uvloop
from aiohttp import web

from mmdisagg_workers.contract import DecodeForm

from .client import EngineClient, open_session
from .endpoints import Pool
from .infos import InfoReader
from .metrics import RouterMetrics
from .pipeline import Pipeline
from .readiness import Readiness
from .request_log import RequestLog
from .server import Front
from .settings import STAGE_TOKEN_VARIABLE, Deadlines, Settings, SettingsError, limits_from
from .topology import Role

EXIT_BAD_SETTINGS: Final = 42
AUTO: Final = "Auto"

_EPILOG: Final = """\
The roles that are given make the topology: encode, prefill and decode (E/P/D), encode and decode
(E/PD), prefill and decode (EP/D), decode alone (PD). A role with several engines takes several URLs.

environment:
  MMDISAGG_STAGE_TOKEN  secret that the engines require; sent with each leg, never logged
  MMDISAGG_MEDIA        JSON as the engines get it; read here: {"limits": {"images", "videos", "bytes"}}

SIGTERM or SIGINT: no new connections, /ready answers 503, requests in flight are finished.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    defaults = Deadlines()
    cli = argparse.ArgumentParser(
        prog="mmdisagg-router",
        description="OpenAI-compatible front of a deployment whose stages are engines of their own.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cli.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    cli.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
    cli.add_argument("--served-model", required=True, metavar="NAME", help="name that clients ask for")
    for role in Role:
        cli.add_argument(
            f"--{role}",
            nargs="+",
            default=[],
            action="extend",
            metavar="URL",
            help=f"base URLs of the {role} engines",
        )
    cli.add_argument(
        "--decode-contract",
        choices=[AUTO, *DecodeForm],
        default=AUTO,
        help="how decode is told about media; Auto is the model family's default",
    )
    _add_seconds(cli, "--request-timeout", defaults.request, "for a request as a whole, its stream included")
    _add_seconds(cli, "--connect-timeout", defaults.connect, "until a connection to an engine stands")
    _add_seconds(
        cli, "--stage-timeout", defaults.stage, "for an encode or prefill leg, or decode's first token"
    )
    _add_seconds(cli, "--idle-timeout", defaults.idle, "between two pieces of a stream")
    _add_seconds(cli, "--drain-timeout", 30.0, "for requests in flight at shutdown")
    return cli


def settings_from(options: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Return the settings of a command line.

    Raises:
        SettingsError: the roles make no topology, or the environment is malformed.
    """
    settings = Settings(
        model=options.served_model,
        endpoints={role: tuple(getattr(options, role)) for role in Role},
        decode_form=None if options.decode_contract == AUTO else DecodeForm(options.decode_contract),
        token=environment.get(STAGE_TOKEN_VARIABLE, ""),
        limits=limits_from(environment),
        deadlines=Deadlines(
            connect=options.connect_timeout,
            stage=options.stage_timeout,
            idle=options.idle_timeout,
            request=options.request_timeout,
        ),
    )
    try:
        _ = settings.topology
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return settings


async def serve(settings: Settings, host: str, port: int, drain: float) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is in flight.

    Args:
        settings: what to serve.
        host: address to listen on.
        port: port to listen on.
        drain: seconds that requests in flight get at shutdown.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_session(settings.deadlines, settings.token) as session:
        front = build_front(settings, EngineClient(session, settings.deadlines), InfoReader(session))
        watch = asyncio.create_task(front.readiness.watch())
        runner = front.runner(drain)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, backlog=1024).start()
            await stop.wait()
        finally:
            front.readiness.draining = True
            await runner.cleanup()
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch


def build_front(settings: Settings, client: EngineClient, reader: InfoReader) -> Front:
    """Put the parts together."""
    topology = settings.topology
    pools = {role: Pool(role) for role in topology.roles}
    for role, pool in pools.items():
        pool.replace(settings.endpoints[role])
    return Front(
        settings=settings,
        pipeline=Pipeline(topology, pools, client, settings.deadlines),
        readiness=Readiness(topology, pools, settings.decode_form, reader),
        metrics=RouterMetrics(),
        log=RequestLog(sys.stdout.write),
        created=int(time.time()),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the router; exits with `EXIT_BAD_SETTINGS` and one line of reason when it cannot start."""
    options = parser().parse_args(arguments)
    try:
        settings = settings_from(options, os.environ)
    except SettingsError as error:
        print(f"mmdisagg-router: {error}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_SETTINGS) from None
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a text stream at start
    uvloop.run(serve(settings, options.host, options.port, options.drain_timeout))


def _add_seconds(cli: argparse.ArgumentParser, name: str, default: float, purpose: str) -> None:
    cli.add_argument(
        name, type=float, default=default, metavar="S", help=f"seconds {purpose} (default: %(default)g)"
    )


if __name__ == "__main__":
    main()
