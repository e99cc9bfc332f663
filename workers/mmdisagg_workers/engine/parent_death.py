"""Leaving nothing behind: processes that end when the one that started them is gone (Linux).

vLLM stops its engine processes when its server ends in an orderly way. When the server is killed, they
would live on and keep the accelerator; the kernel's parent death signal closes that gap.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent(parent: int, signum: signal.Signals) -> None:
    """Ask the kernel to send `signum` to this process when `parent`, its parent, dies.

    The request is not inherited by children. A parent that died before the call sends nothing any more, so
    the signal is sent here when `parent` is no longer the parent.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def bind_engine_processes() -> None:
    """Make vLLM's engine processes end with their parents.

    Called by the general plugin. Forked processes do not load plugins again, so the request is made in a
    fork hook; spawned ones load the plugin and make it here.
    """
    os.register_at_fork(after_in_child=_end_with_forking_parent)
    started_by = multiprocessing.parent_process()
    if started_by is not None and started_by.pid == os.getppid():
        end_with_parent(started_by.pid, signal.SIGKILL)


def _end_with_forking_parent() -> None:
    end_with_parent(os.getppid(), signal.SIGKILL)
