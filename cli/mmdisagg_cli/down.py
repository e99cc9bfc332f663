"""`mmdisagg down`: ends a deployment that `up` started, also one whose `up` was killed."""

import contextlib
import os
import signal
import time

from mmdisagg_cli.processes import ProcessId, is_alive
from mmdisagg_cli.state import StateStore, StillRunning

_POLL_S = 0.1
_KILL_WAIT_S = 5.0


def down(store: StateStore, name: str, timeout_s: float = 40.0) -> bool:
    """End the deployment of this name and everything that belongs to it; False when nothing of it was there.

    The command that started it does the work; only when it is gone, or not done after `timeout_s` seconds,
    this one does.

    Raises:
        UnusableState: when the state cannot be read; then nothing is ended and nothing removed.
        StillRunning: when processes live on.
    """
    if name not in store.names():
        return False
    state = store.running(name)
    if state is not None:
        _send(state.supervisor, signal.SIGTERM)
        _wait_for_end(store, name, state.supervisor, timeout_s)
        if store.read(name) is not None:
            _send(state.supervisor, signal.SIGKILL)
            # A killed process takes a moment to end; until then its deployment is not stale.
            _wait_for_end(store, name, state.supervisor, _KILL_WAIT_S)
    store.clean_stale(name)
    if store.running(name) is not None:
        raise StillRunning(f"{name} still runs; try again")
    return True


def _wait_for_end(store: StateStore, name: str, supervisor: ProcessId, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while is_alive(supervisor) and store.read(name) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _send(process: ProcessId, number: signal.Signals) -> None:
    if is_alive(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
