"""A socket that never waits for ever, and the handshake of both sides.

The time limits are the kernel's (`SO_RCVTIMEO`, `SO_SNDTIMEO`) on a blocking socket, and `MSG_WAITALL` reads
a whole message in one system call that holds no interpreter lock: however slow the other side is, the threads
of the engine run on.
"""

from __future__ import annotations

import secrets
import socket
import struct
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from .protocol import (
    HELLO_BYTES,
    MAC_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Greeting,
    PeerUnreachableError,
    ProtocolError,
    check_proof,
    proof,
)

CHUNK_BYTES: Final = 1 << 20
"""What must arrive or leave within one time limit: the slowest transfer is a MiB per `IDLE_SECONDS`."""
CONNECT_SECONDS: Final = 1.5
"""Long enough for a SYN that was lost once: the kernel sends it again after a second. A pod that is gone
often just does not answer; its requests wait this long before they are encoded again, once for all of them.
"""
HANDSHAKE_SECONDS: Final = 5.0
IDLE_SECONDS: Final = 10.0


class Connection:
    """One connected socket; leaving the context closes it."""

    def __init__(self, sock: socket.socket, seconds: float = IDLE_SECONDS) -> None:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self.limit(seconds)

    @classmethod
    def open(cls, host: str, port: int, seconds: float = IDLE_SECONDS) -> Connection:
        """Connect.

        Raises:
            PeerUnreachableError: nobody answered in time.
        """
        try:
            return cls(socket.create_connection((host, port), CONNECT_SECONDS), seconds)
        except OSError as error:
            raise PeerUnreachableError(f"no connection to {host}:{port}: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def limit(self, seconds: float) -> None:
        """Set how long one message, or one chunk of an embedding, may take."""
        whole = int(seconds)
        value = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, value)

    def break_off(self) -> None:
        """End the connection under a thread that may be waiting for it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def read(self, size: int) -> bytes:
        """Read a message of `size` bytes.

        Raises:
            ProtocolError: it did not come whole in time.
        """
        message = bytearray(size)
        with memoryview(message) as whole:
            self.read_into(whole)
        return bytes(message)

    def read_into(self, target: memoryview) -> None:
        """Fill a buffer.

        Raises:
            ProtocolError: the bytes did not come in time, or the other side closed.
        """
        for start in range(0, len(target), CHUNK_BYTES):
            with target[start : start + CHUNK_BYTES] as chunk:
                self._fill(chunk)

    def ended(self) -> bool:
        """Whether the other side closes instead of sending more; waits until one or the other is clear.

        Raises:
            ProtocolError: neither happened in time.
        """
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            raise ProtocolError("it is idle") from None
        except OSError as error:
            raise ProtocolError(f"the connection broke: {error}") from None

    def send(self, data: bytes | memoryview) -> None:
        """Send a message.

        Raises:
            ProtocolError: the other side did not take it in time.
        """
        try:
            self._socket.sendall(data)
        except BlockingIOError:
            raise ProtocolError("the other side takes nothing more") from None
        except OSError as error:
            raise ProtocolError(f"the connection broke: {error}") from None

    def send_long(self, content: memoryview) -> None:
        """Send an embedding, chunk by chunk.

        Raises:
            ProtocolError: the other side did not take a chunk in time.
        """
        for start in range(0, len(content), CHUNK_BYTES):
            with content[start : start + CHUNK_BYTES] as chunk:
                self.send(chunk)

    def _fill(self, chunk: memoryview) -> None:
        try:
            got = self._socket.recv_into(chunk, len(chunk), socket.MSG_WAITALL)
        except BlockingIOError:
            got = 0
        except OSError as error:
            raise ProtocolError(f"the connection broke: {error}") from None
        if got != len(chunk):
            raise ProtocolError(f"{got} of {len(chunk)} bytes came in time")


def greet_client(connection: Connection, token: str) -> None:
    """The server's side of the handshake.

    Raises:
        ProtocolError: the client is somebody else.
    """
    own = secrets.token_bytes(NONCE_BYTES)
    connection.send(Greeting(own).encode())
    answer = connection.read(PROOF_BYTES)
    other = Greeting.decode(answer[:HELLO_BYTES]).nonce
    check_proof(proof(token, b"client", own, other), answer[HELLO_BYTES:])
    connection.send(proof(token, b"server", own, other))


def greet_server(connection: Connection, token: str) -> None:
    """The client's side of the handshake.

    Raises:
        ProtocolError: the server is somebody else.
    """
    other = Greeting.decode(connection.read(HELLO_BYTES)).nonce
    own = secrets.token_bytes(NONCE_BYTES)
    connection.send(Greeting(own).encode() + proof(token, b"client", other, own))
    try:
        answer = connection.read(MAC_BYTES)
    except ProtocolError as error:
        raise ProtocolError(f"no answer to the proof, maybe its stage token is another: {error}") from None
    check_proof(proof(token, b"server", other, own), answer)
