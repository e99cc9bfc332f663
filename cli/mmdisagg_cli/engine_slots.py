"""Four engine slots for the whole machine: a fifth engine waits instead of exhausting the memory.

All of a deployment's slots are taken together or not at all, so two deployments that want three each never
wait for one another. An engine inherits its slot's lock and keeps it until its last process has ended, even
when the command that started it was killed.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from mmdisagg_cli.errors import CommandError
from mmdisagg_cli.leases import Lease, LeaseDirectory

SLOTS = 4
"""How many engines may run at once on one machine."""

_DIRECTORY_VARIABLE = "MMDISAGG_ENGINE_SLOTS"
# Fixed, not tempfile.gettempdir(): processes with different TMPDIR must meet here.
_DIRECTORY = "/tmp/mmdisagg-engine-slots"  # noqa: S108
_POLL_S = 0.5


class NoEngineSlot(CommandError):
    """The wanted slots did not come free in time, or are more than the machine has."""


class EngineSlots:
    """The machine's engine slots; `directory` defaults to $MMDISAGG_ENGINE_SLOTS or one place for the
    machine.
    """

    ALL_FREE = "all are free"

    def __init__(self, directory: Path | None = None) -> None:
        self._leases = LeaseDirectory(directory or Path(os.environ.get(_DIRECTORY_VARIABLE) or _DIRECTORY))

    def acquire(
        self,
        count: int,
        holder: str,
        timeout_s: float | None = None,
        waiting: Callable[[str], None] = lambda message: None,
    ) -> list[Lease]:
        """Take `count` slots; `waiting` is called again and again while they are taken by others.

        Raises:
            NoEngineSlot: when `timeout_s` seconds passed (None: wait for ever), or at once for more than
            `SLOTS`.
        """
        if count > SLOTS:
            raise NoEngineSlot(f"{count} engines are wanted at once; a machine runs at most {SLOTS}")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (taken := self._try_acquire(count, f"{holder} (pid {os.getpid()})")) is None:
            waiting(f"waiting for {count} of {SLOTS} engine slots; {self.holders()}")
            if deadline is not None and time.monotonic() >= deadline:
                raise NoEngineSlot(f"no {count} free engine slots after {timeout_s:g} s; {self.holders()}")
            time.sleep(_POLL_S)
        return taken

    def holders(self) -> str:
        """Who holds the taken slots, in words."""
        taken = []
        for number in range(SLOTS):
            lease = self._leases.try_take(str(number), "")
            if lease:
                lease.release()
            else:
                taken.append(self._leases.holder(str(number)))
        return "held by " + ", ".join(sorted(set(taken))) if taken else self.ALL_FREE

    def _try_acquire(self, count: int, holder: str) -> list[Lease] | None:
        taken: list[Lease] = []
        for number in range(SLOTS):
            lease = self._leases.try_take(str(number), holder) if len(taken) < count else None
            taken += [lease] if lease else []
        if len(taken) == count:
            return taken
        for lease in taken:
            lease.release()
        return None
