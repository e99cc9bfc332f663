"""Fetching embeddings from one peer."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Self

from .connection import IDLE_SECONDS, Connection, greet_server
from .protocol import REPLY_BYTES, HandoffError, Layout, check_reply, encode_request

HOST: Final = "peer_host"
PORT: Final = "peer_port"
SIZE: Final = "size_bytes"
"""Keys of an item's entry of `ec_transfer_params`, spelt as vLLM's own connectors spell them."""


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

    def fetch(self, identity: str, layout: Layout, target: memoryview) -> None:
        """Fetch an embedding of a known layout into memory of exactly its size.

        Raises:
            HandoffError: the peer has it no more, or sends something else; the connection is of no use then.
        """
        self._connection.send(encode_request(identity))
        check_reply(self._connection.read(REPLY_BYTES), layout)
        self._connection.read_into(target)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
