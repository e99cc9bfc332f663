"""The command ``python -m testbed``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed import api, images, report
from testbed.api import ApiServer
from testbed.cluster import Cluster, purge
from testbed.control_plane import MAX_NODES
from testbed.errors import CannotRunHere, TestbedError
from testbed.layout import API, Layout
from testbed.scratch import remove_orphans
from testbed.steps import Steps

FAILED, CANNOT = 1, 3


def main(words: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0, 1 when it failed, 3 when this machine cannot run the test bed.
    """
    arguments = parser().parse_args(words)
    command: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return command(arguments)
    except CannotRunHere as error:
        print(f"testbed: {error}", file=sys.stderr)
        return CANNOT
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return FAILED


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    root = argparse.ArgumentParser(prog="testbed", description=sys.modules["testbed"].__doc__)
    commands = root.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    def api_only(added: argparse.ArgumentParser) -> None:
        added.add_argument(
            "--api-only", action="store_true", help="only an API server with controllers, without nodes"
        )

    up = command("up", _up, "start it, or what is missing of it")
    up.add_argument("--nodes", type=int, default=2, choices=range(1, MAX_NODES + 1), help="default: 2")
    up.add_argument("--gpus", type=int, default=4, help="GPUs that each node pretends to have (default: 4)")
    api_only(up)
    down = command("down", _down, "stop it and clean up, whatever state it is in")
    down.add_argument("--purge", action="store_true", help="delete compiled programs and images too")
    api_only(down)
    api_only(command("prepare", _prepare, "compile and build all that is kept, start nothing"))
    build = command("build", _build, "build an image from a Dockerfile and load it on every node")
    build.add_argument("name", help=f"{images.LOCAL}NAME:TAG")
    build.add_argument("folder", type=Path, help="the build context")
    build.add_argument("arguments", nargs="*", metavar="ARG=VALUE", help="BASE_IMAGE is set unless given")
    build.add_argument("--file", type=Path, help="default: Dockerfile in the context")
    load = command("load", _load, "load an image archive on every node")
    load.add_argument("archive", type=Path)
    api_only(command("env", _env, 'print shell settings: eval "$(python -m testbed env)"'))
    command("status", _status, "print what runs; fails unless the cluster is whole")
    return root


def _cluster() -> Cluster:
    return Cluster(Layout.from_environment(), Steps())


def _api_server() -> ApiServer:
    return ApiServer(Layout.from_environment(), instance=API, steps=Steps())


def _up(arguments: argparse.Namespace) -> int:
    if arguments.api_only:
        server = _api_server()
        server.start()
        print(f"KUBECONFIG={server.kubeconfig}")
    else:
        cluster = _cluster()
        cluster.up(arguments.nodes, arguments.gpus)
        print(f"KUBECONFIG={cluster.plane.kubeconfig()}")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    layout = Layout.from_environment()
    _api_server().stop()
    remove_orphans(layout)
    if not arguments.api_only:
        _cluster().down()
    if arguments.purge:
        purge(layout)
    return 0


def _prepare(arguments: argparse.Namespace) -> int:
    if arguments.api_only:
        api.prepare(Layout.from_environment(), Steps())
    else:
        _cluster().prepare()
    return 0


def _build(arguments: argparse.Namespace) -> int:
    dockerfile = arguments.file or arguments.folder / "Dockerfile"
    _cluster().build(arguments.name, arguments.folder, dockerfile, arguments.arguments)
    return 0


def _load(arguments: argparse.Namespace) -> int:
    _cluster().load(arguments.archive, arguments.archive.name)
    return 0


def _env(arguments: argparse.Namespace) -> int:
    layout = Layout.from_environment()
    if arguments.api_only:
        print(report.settings(layout, _api_server().kubeconfig))
    else:
        print(report.settings(layout, _cluster().plane.kubeconfig()))
    return 0


def _status(arguments: argparse.Namespace) -> int:
    cluster = _cluster()
    print(report.status(cluster))
    return 0 if cluster.whole() else FAILED
