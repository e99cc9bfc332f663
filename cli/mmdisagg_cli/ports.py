"""Free TCP ports that stay free until an engine binds them, a minute after they were chosen.

`bind(0)` and close is a gamble: the kernel gives the same port to the next outgoing connection. Ports are
taken from below the kernel's range for outgoing connections instead, and a machine-wide lease keeps other
deployments off them.
"""

import random
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mmdisagg_cli.errors import CommandError
from mmdisagg_cli.leases import Lease, LeaseDirectory

LOOPBACK = "127.0.0.1"
"""The address on which every local role listens."""

_DIRECTORY = Path("/tmp/mmdisagg-ports")  # noqa: S108
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 20000, 32767
_TRIES = 500


class NoFreePort(CommandError):
    """The wanted port is in use, or no free one was found."""


@dataclass(frozen=True, slots=True)
class ReservedPort:
    """A port that nobody listens on and no other deployment will choose until `release`."""

    number: int
    lease: Lease

    def release(self) -> None:
        """Give the port back; safe to call twice."""
        self.lease.release()


class PortPool:
    """Where ports come from; `directory` holds the machine's leases on them."""

    def __init__(self, directory: Path = _DIRECTORY) -> None:
        self._leases = LeaseDirectory(directory)

    def take(self) -> ReservedPort:
        """Reserve any free port.

        Raises:
            NoFreePort: when hundreds of tries found none.
        """
        lowest, highest = _safe_range()
        candidates = random.sample(range(lowest, highest + 1), min(_TRIES, highest + 1 - lowest))
        return self._first_free(candidates, f"no free port between {lowest} and {highest} on {LOOPBACK}")

    def take_exactly(self, number: int) -> ReservedPort:
        """Reserve this port.

        Raises:
            NoFreePort: when somebody listens on it or another deployment has it.
        """
        return self._first_free(
            [number], f"port {number} on {LOOPBACK} is in use; choose another with --port"
        )

    def take_preferred(self, number: int) -> ReservedPort:
        """Reserve this port, or any other when it is in use."""
        try:
            return self.take_exactly(number)
        except NoFreePort:
            return self.take()

    def _first_free(self, candidates: Iterable[int], refusal: str) -> ReservedPort:
        for number in candidates:
            lease = self._leases.try_take(str(number), "")
            if lease and is_free(number):
                return ReservedPort(number, lease)
            if lease:
                lease.release()
        raise NoFreePort(refusal)


def is_free(number: int) -> bool:
    """True when nothing listens on the port, on loopback or on all addresses."""
    with socket.socket() as probe:
        # As servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, number))
        except OSError:
            return False
    return True


def _safe_range() -> tuple[int, int]:
    try:
        first_ephemeral = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except OSError:
        return _LOWEST, _HIGHEST
    # A machine whose range starts lower leaves no safe ports; a small risk is better than none to choose
    # from.
    return _LOWEST, min(_HIGHEST, first_ephemeral - 1) if first_ephemeral > _LOWEST + _TRIES else _HIGHEST
