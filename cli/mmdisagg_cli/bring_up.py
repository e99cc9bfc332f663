"""Starts a local deployment in front of a user: progress while it loads, the log of a role that dies, and
signals.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from mmdisagg_cli.board import Board
from mmdisagg_cli.local import LocalDeployment
from mmdisagg_cli.role_process import NotReady, RoleDied, RoleProcess
from mmdisagg_cli.stop_signals import StopSignals

_TAIL_LINES = 20


def bring_up(local: LocalDeployment, signals: StopSignals, console: Console, timeout_s: float) -> None:
    """Start a deployment and wait until it is ready.

    Raises:
        CommandError: when it cannot start or a role dies.
        Stopped: after a signal.
    """
    with Board(console, local.name) as board:

        def waiting(message: str) -> None:
            board.waiting(message)
            signals.raise_if_received()

        def tick(roles: Sequence[RoleProcess]) -> None:
            board.show(roles)
            signals.raise_if_received()

        local.start(waiting)
        local.wait_ready(timeout_s, tick)


@contextlib.contextmanager
def failures_reported(local: LocalDeployment, console: Console) -> Iterator[None]:
    """Show the last log lines of a role that died or did not become ready, and keep its log, before all is
    ended.
    """
    try:
        yield
    except RoleDied as death:
        _report(local, console, [death.role], str(death))
        raise
    except NotReady as late:
        _report(local, console, late.roles, str(late))
        raise


def _report(local: LocalDeployment, console: Console, roles: Sequence[RoleProcess], message: str) -> None:
    console.print(message, style="bold red", markup=False, highlight=False)
    try:
        logs: Path | None = local.save_logs()
    except OSError as error:
        # A full disk must not hide why the role failed.
        console.print(f"the logs could not be kept: {error}", markup=False, highlight=False, soft_wrap=True)
        logs = None
    for role in roles:
        log = logs / role.log.name if logs else role.log
        console.print(f"last lines of {log}:", markup=False, highlight=False, soft_wrap=True)
        console.print(role.log_tail(_TAIL_LINES), style="dim", markup=False, highlight=False, soft_wrap=True)
