"""Fetching embeddings from one peer."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Self

from .connection import IDLE_SECONDS, Connection, greet_server
from .protocol import NUMBER_BITS, REPLY_BYTES, HandoffError, Layout, Request, Verb, check_reply

HOST: Final = "peer_host"
PORT: Final = "peer_port"
SIZE: Final = "size_bytes"
"""Keys of an item's entry of `ec_transfer_params`, spelt as vLLM's own connectors spell them."""
RESERVATION: Final = "reservation"
"""Our own key: the number of the reservation in encode's store."""


@dataclass(frozen=True)
class Peer:
    """An encode engine's embedding port.

    Attributes:
        host: IP address.
        port: TCP port.
    """

    host: str
    port: int

    @classmethod
    def from_entry(cls, entry: Any) -> Self:
        """Read the place from an item's entry of `ec_transfer_params`.

        Raises:
            HandoffError: it names no IP address and port.
        """
        host, port = (entry.get(HOST), entry.get(PORT)) if isinstance(entry, dict) else (None, None)
        if not isinstance(host, str) or type(port) is not int or not 0 < port < 1 << 16:
            raise HandoffError(f"{HOST} and {PORT} are {host!r} and {port!r}; encode reports them")
        try:
            return cls(str(ip_address(host)), port)
        except ValueError:
            raise HandoffError(f"{HOST} is {host!r}; give an IP address") from None


def reservation_of(entry: Any) -> int:
    """Read the reservation from an item's entry of `ec_transfer_params`; 0 when it names none."""
    number = entry.get(RESERVATION) if isinstance(entry, dict) else None
    return number if type(number) is int and 0 < number < 1 << NUMBER_BITS else 0


class PeerConnection:
    """A connection to a peer, for one embedding after the other; leaving the context closes it."""

    def __init__(self, peer: Peer, token: str, idle_seconds: float = IDLE_SECONDS) -> None:
        """Connect and prove both sides.

        Raises:
            HandoffError: the peer cannot be reached, or is no peer.
        """
        self._connection = Connection.open(peer.host, peer.port, idle_seconds)
        try:
            greet_server(self._connection, token)
        except BaseException:
            self._connection.close()
            raise

    def fetch(self, identity: str, layout: Layout, target: memoryview, reservation: int = 0) -> None:
        """Fetch an embedding of a known layout into memory of exactly its size; its reservation ends.

        Raises:
            HandoffError: the peer has it no more, or sends something else; the connection is of no use then.
        """
        self._connection.send(Request(Verb.FETCH, identity, reservation).encode())
        check_reply(self._connection.read(REPLY_BYTES), layout)
        self._connection.read_into(target)

    def release(self, identity: str, reservation: int) -> None:
        """End the reservation of an embedding that is not needed; nothing comes back.

        Raises:
            HandoffError: the connection broke.
        """
        self._connection.send(Request(Verb.RELEASE, identity, reservation).encode())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
