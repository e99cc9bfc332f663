"""A deployment and, beside it, one aggregated engine with the same engine arguments: what answers are
compared on.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console

from mmdisagg_cli.bring_up import bring_up, failures_reported
from mmdisagg_cli.chat import ChatClient
from mmdisagg_cli.deployment_file import DeploymentFile
from mmdisagg_cli.errors import CommandError
from mmdisagg_cli.local import AGGREGATED, LocalDeployment, spec_digest
from mmdisagg_cli.state import DeploymentState, StateStore
from mmdisagg_cli.stop_signals import StopSignals


class NotComparable(CommandError):
    """A deployment of this name runs, but it is another one than the file's, or not ready."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Clients of the two: `routed` goes through the router, `reference` asks the aggregated engine."""

    local: LocalDeployment
    routed: ChatClient
    reference: ChatClient


@contextlib.contextmanager
def side_by_side(
    file: DeploymentFile, signals: StopSignals, console: Console, timeout_s: float
) -> Iterator[SideBySide]:
    """Start what is missing and end it again: a deployment that already runs is used and left alone.

    Raises:
        CommandError: when something cannot be started, or the running deployment is not the file's.
        Stopped: after a signal.
    """
    running = _running(file)
    local = LocalDeployment(
        file.deployment, file.base, serve=running is None, reference=True, hurry=lambda: signals.impatient
    )
    with local, failures_reported(local, console):
        bring_up(local, signals, console, timeout_s)
        model = file.deployment.spec.model.served_name
        yield SideBySide(
            local,
            routed=ChatClient(running.url if running else local.url, model),
            reference=ChatClient(local.role(AGGREGATED).url, model),
        )


def _running(file: DeploymentFile) -> DeploymentState | None:
    name = file.deployment.metadata.name
    state = StateStore().running(name)
    if state is None:
        return None
    if state.spec_digest != spec_digest(file.deployment, file.base):
        raise NotComparable(
            f"{name} runs with another spec than {file.path}; run `mmdisagg down {name}` first"
        )
    if state.phase != "ready":
        raise NotComparable(f"{name} is still starting; wait until `mmdisagg status` calls it ready")
    return state
