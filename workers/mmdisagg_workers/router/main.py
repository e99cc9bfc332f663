"""`mmdisagg-router`: the process around the front."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import uvloop
from aiohttp import web

from mmdisagg_workers.contract import MEDIA, STAGE_TOKEN, STAGES, DecodeForm, Role, topology_of

from .admission import Admission
from .api_server import Access, ApiServer
from .client import EngineClient, open_session
from .discovery import Discovery
from .engines import DiscoveredEngines, Engines, GivenEngines
from .infos import InfoReader
from .metrics import RouterMetrics
from .pipeline import Pipeline
from .readiness import Readiness
from .request_log import RequestLog
from .server import Front
from .settings import MAX_BYTES_IN_FLIGHT, MAX_IN_FLIGHT, Deadlines, Settings, SettingsError, limits_from

EXIT_BAD_SETTINGS: Final = 42
AUTO: Final = "Auto"
MAX_PORT: Final = 65535
HEADER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
"""As the resource's `router.tenantHeader`."""

_EPILOG: Final = f"""\
The roles that are given make the topology: encode, prefill and decode (E/P/D), encode and decode
(E/PD), prefill and decode (EP/D), decode alone (PD). A role with several engines takes several URLs.
In a pod, --discover finds the engines of a deployment instead, while they come and go: the newest
revision with a ready engine for every role of its topology serves.

environment:
  {STAGE_TOKEN}  secret that the engines require; sent with each leg, never logged
  {MEDIA}        JSON as the engines get it; read here:
                        {{"limits": {{"images", "videos", "bytes", "pixels"}}}}

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
    cli.add_argument("--port", type=_port, default=8000, help="port to listen on (default: %(default)s)")
    cli.add_argument("--served-model", required=True, metavar="NAME", help="name that clients ask for")
    for role in STAGES:
        cli.add_argument(
            f"--{role}",
            nargs="+",
            default=[],
            action="extend",
            type=_url,
            metavar="URL",
            help=f"base URLs of the {role} engines",
        )
    cli.add_argument(
        "--discover", metavar="NAME", help="deployment whose engines are found by its EndpointSlices"
    )
    cli.add_argument(
        "--decode-contract",
        choices=[AUTO, *DecodeForm],
        default=AUTO,
        help="how decode is told about media; Auto is the model family's default",
    )
    cli.add_argument(
        "--max-in-flight",
        type=_positive,
        default=MAX_IN_FLIGHT,
        metavar="N",
        help="requests served at once; above it clients get 429 (default: %(default)s)",
    )
    cli.add_argument(
        "--max-bytes-in-flight",
        type=_positive,
        default=MAX_BYTES_IN_FLIGHT,
        metavar="BYTES",
        help="bytes of their bodies; above it clients get 429 (default: %(default)s)",
    )
    cli.add_argument(
        "--tenant-header",
        type=_header,
        metavar="NAME",
        help="header, set by a gateway, that names the tenant; tenants share no remembered pictures",
    )
    _add_seconds(cli, "--request-timeout", defaults.request, "for a request as a whole, its stream included")
    _add_seconds(cli, "--body-timeout", defaults.body, "until a client has sent its request")
    _add_seconds(cli, "--connect-timeout", defaults.connect, "until a connection to an engine stands")
    _add_seconds(
        cli, "--stage-timeout", defaults.stage, "for an encode or prefill leg, or decode's first token"
    )
    _add_seconds(cli, "--idle-timeout", defaults.idle, "between two pieces of a stream")
    _add_seconds(cli, "--write-timeout", defaults.write, "until a client has taken a piece of its stream")
    _add_seconds(cli, "--drain-timeout", 30.0, "for requests in flight at shutdown")
    return cli


def settings_from(options: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Return the settings of a command line.

    Raises:
        SettingsError: the roles make no topology, or are both given and discovered, or the environment is
            malformed.
    """
    given = {role: tuple(getattr(options, role)) for role in STAGES}
    _check_engines(given, options.discover)
    return Settings(
        model=options.served_model,
        endpoints=given,
        discover=options.discover,
        decode_form=None if options.decode_contract == AUTO else DecodeForm(options.decode_contract),
        token=environment.get(STAGE_TOKEN, ""),
        limits=limits_from(environment),
        deadlines=Deadlines(
            body=options.body_timeout,
            connect=options.connect_timeout,
            stage=options.stage_timeout,
            idle=options.idle_timeout,
            write=options.write_timeout,
            request=options.request_timeout,
        ),
        max_in_flight=options.max_in_flight,
        max_bytes_in_flight=options.max_bytes_in_flight,
        tenant_header=options.tenant_header,
    )


async def serve(settings: Settings, access: Access | None, host: str, port: int, drain: float) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is in flight.

    Args:
        settings: what to serve.
        access: the API server's, where engines are discovered.
        host: address to listen on.
        port: port to listen on.
        drain: seconds that requests in flight get at shutdown.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_session(settings.deadlines, settings.token) as session, aiohttp.ClientSession() as plain:
        engines, client = engines_of(settings), EngineClient(session, settings.deadlines)
        # Only legs carry the stage token: whoever answers at an engine's address has not said what it is yet.
        front = build_front(settings, engines, client, InfoReader(plain))
        # A task of these that fails ends the process: it would serve from what it knew long ago.
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(front.readiness.watch())]
            if access is not None and isinstance(engines, DiscoveredEngines):
                found = discovery(settings, access, plain, engines, front)
                tasks.append(group.create_task(found.run()))
            try:
                await _listen(front, host, port, drain, stop)
            finally:
                for task in tasks:
                    task.cancel()


async def _listen(front: Front, host: str, port: int, drain: float, stop: asyncio.Event) -> None:
    runner = front.runner(drain)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
        await stop.wait()
    finally:
        front.readiness.draining = True
        await runner.cleanup()


def engines_of(settings: Settings) -> Engines:
    """Return the engines, none of which has been asked yet."""
    if settings.discover is not None:
        return DiscoveredEngines(settings.decode_form)
    return GivenEngines(settings.endpoints, settings.decode_form)


def discovery(
    settings: Settings,
    access: Access,
    session: aiohttp.ClientSession,
    engines: DiscoveredEngines,
    front: Front,
) -> Discovery:
    """Return what keeps `engines` up to date."""
    return Discovery(
        ApiServer(access, session),
        access.namespace,
        settings.discover or "",
        engines,
        front.readiness.engines_changed,
    )


def build_front(settings: Settings, engines: Engines, client: EngineClient, reader: InfoReader) -> Front:
    """Put the parts together."""
    admission = Admission(settings.max_in_flight, settings.max_bytes_in_flight)
    readiness = Readiness(engines, reader)
    return Front(
        settings=settings,
        pipeline=Pipeline(client, settings.deadlines),
        readiness=readiness,
        admission=admission,
        metrics=RouterMetrics(admission, readiness),
        log=RequestLog(sys.stdout.write),
        created=int(time.time()),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the router; exits with `EXIT_BAD_SETTINGS` and one line of reason when it cannot start."""
    options = parser().parse_args(arguments)
    try:
        settings = settings_from(options, os.environ)
        access = Access.in_pod(os.environ) if settings.discover else None
    except SettingsError as error:
        print(f"mmdisagg-router: {error}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_SETTINGS) from None
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a text stream at start
    uvloop.run(serve(settings, access, options.host, options.port, options.drain_timeout))


def _check_engines(given: Mapping[Role, Sequence[str]], discover: str | None) -> None:
    named = [role for role, urls in given.items() if urls]
    if discover is not None:
        if named:
            raise SettingsError(f"give --discover or --{named[0]}, not both")
        return
    try:
        topology_of(named)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _add_seconds(cli: argparse.ArgumentParser, name: str, default: float, purpose: str) -> None:
    cli.add_argument(
        name, type=float, default=default, metavar="S", help=f"seconds {purpose} (default: %(default)g)"
    )


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"got {text!r}; give a base URL such as http://127.0.0.1:8100")
    return text


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"got {number}; give a port up to {MAX_PORT}")
    return number


def _header(text: str) -> str:
    if not HEADER_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"got {text!r}; give the name of a header: letters, digits, hyphens")
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}; give 1 or more")
    return number


if __name__ == "__main__":
    main()
