"""`mmdisagg-worker`: start stock vLLM's OpenAI server for one role, in this process.

Checks everything that would otherwise fail late or silently (vLLM version, settings, family), hands the
resolved facts to the plugins by environment, and calls vLLM's own entry point.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import MutableMapping, Sequence
from types import FrameType
from typing import Final, NoReturn

from mmdisagg_workers.contract import FAMILY, MEDIA, REVISION, STAGE_TOKEN, TOPOLOGY, Role

from . import settings as env
from .model_facts import model_facts, read_config
from .parent_death import end_with_parent
from .settings import WorkerSettings, geometry_to_json
from .start_errors import BadSettings, StartError, WrongEngineVersion, report
from .worker_extension import EXTENSION

VLLM_VERSION: Final = "0.32.0"
"""The one supported vLLM, without a local suffix: the CPU build shares it."""

_EPILOG = f"""\
All other arguments go to vLLM's OpenAI server unchanged; list them with
  python -m vllm.entrypoints.launchers.api_server.entry --help

environment:
  {TOPOLOGY}         E/P/D, E/PD, EP/D or PD
  {FAMILY}           Auto, or the family that the model must have
  {REVISION}         hash of what must agree between engines
  {STAGE_TOKEN}      the deployment's secret, {env.MIN_TOKEN_CHARS} characters or more
  {MEDIA}            JSON: allowedHosts, allowPrivateNetworks, limits (images, videos, bytes, pixels)
  {env.DIE_WITH_PARENT}  process id of a local launcher to end with

exit codes:
  40 the model's family is unknown or not the one named   41 wrong vLLM version   42 bad settings
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker until it is told to stop; return the exit code."""
    # The kernel drops a signal that a container's first process has no handler for, and vLLM's own comes only
    # after its import: a pod that is deleted meanwhile would load on until its grace period is over.
    signal.signal(signal.SIGTERM, _end_at_once)
    own, vllm_args = _parser().parse_known_args(argv)
    try:
        prepare(own.role, vllm_args, os.environ)
    except StartError as error:
        report(error)
        return error.exit_code
    _serve(vllm_args)


def prepare(role: str, vllm_args: Sequence[str], environ: MutableMapping[str, str]) -> WorkerSettings:
    """Check version, settings and model, and put what was resolved into `environ` for the plugins.

    Raises:
        StartError: the worker cannot start.
    """
    check_vllm_version()
    environ[env.ROLE] = role
    environ.pop(env.GEOMETRY, None)
    named = WorkerSettings.from_environ(environ)
    if named.launcher is not None:
        end_with_parent(named.launcher, signal.SIGTERM)
    model, revision = _model(vllm_args)
    facts = model_facts(read_config(model, revision), named.family)
    environ[FAMILY] = facts.family.name
    environ[env.GEOMETRY] = geometry_to_json(facts.geometry)
    return WorkerSettings.from_environ(environ)


def check_vllm_version(found: str | None = None) -> None:
    """Refuse any other vLLM than the supported one.

    Raises:
        WrongEngineVersion: another version is installed, or none.
    """
    version = installed_vllm() if found is None else found
    if version != VLLM_VERSION:
        raise WrongEngineVersion(f"vLLM {version or '(none)'} is installed; install vLLM {VLLM_VERSION}")


def installed_vllm() -> str:
    """Return vLLM's version without its local suffix, or an empty string when it is not installed."""
    try:
        import vllm
    except ImportError:
        return ""
    return str(vllm.__version__).partition("+")[0]


def _end_at_once(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mmdisagg-worker",
        description="Start vLLM's OpenAI server for one role of a disaggregated deployment.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--role", required=True, choices=list(Role), help="what this worker does")
    return parser


def _model(vllm_args: Sequence[str]) -> tuple[str, str | None]:
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    peek.add_argument("--model")
    peek.add_argument("--revision")
    seen, _ = peek.parse_known_args(vllm_args)
    if not seen.model:
        raise BadSettings("--model: missing; give a directory or a hub name")
    return seen.model, seen.revision


def _serve(vllm_args: Sequence[str]) -> NoReturn:
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    sys.argv = [sys.argv[0], *vllm_args, "--worker-extension-cls", EXTENSION]
    serve()
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
