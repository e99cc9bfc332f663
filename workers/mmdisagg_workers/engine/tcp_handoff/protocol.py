"""The wire, version 1: fixed-size messages, big-endian, every length known before anything is read.

    server  hello      magic, version, nonce
    client  proof      magic, version, nonce, MAC over both nonces
    server  proof      MAC over both nonces
    then, as often as the client likes:
    client  request    verb, identity (zero-padded), number of the reservation that it ends
    server  reply      to `FETCH`: status, dtype, rows, width, size; after `FOUND` the `size` bytes

Both sides prove that they know the stage token; the token itself never travels. What follows is neither
encrypted nor authenticated byte by byte: the pod network carries the KV blocks in the same way.
"""

from __future__ import annotations

import hmac
import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from mmdisagg_workers.contract import check_identity

MAGIC: Final = b"mmdisagg"
VERSION: Final = 1
NONCE_BYTES: Final = 32
MAC_BYTES: Final = 32
NUMBER_BITS: Final = 48
"""Of a reservation; JSON readers that know only floating-point numbers keep it whole."""
ITEM_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Element types of embeddings, by torch's name, and their size."""

_GREETING: Final = struct.Struct(f">8sH{NONCE_BYTES}s")
_REQUEST: Final = struct.Struct(">B128sQ")
_REPLY: Final = struct.Struct(">B16sQQQ")

HELLO_BYTES: Final = _GREETING.size
PROOF_BYTES: Final = _GREETING.size + MAC_BYTES
REQUEST_BYTES: Final = _REQUEST.size
REPLY_BYTES: Final = _REPLY.size


class HandoffError(Exception):
    """A fetch came to nothing; the message says why.

    ├── PeerUnreachableError    no connection can be made at all
    └── ProtocolError           the other side sent something else than this protocol
        └── UnauthenticatedError  it does not know the stage token
    """


class PeerUnreachableError(HandoffError):
    """No connection to the peer: it is gone, or the network is."""


class ProtocolError(HandoffError):
    """The bytes are not what this protocol has at this place."""


class UnauthenticatedError(ProtocolError):
    """The other side does not know the stage token."""


class Verb(IntEnum):
    """What a client wants."""

    FETCH = 0
    RELEASE = 1


class Status(IntEnum):
    """Whether the store has what was asked for."""

    FOUND = 0
    ABSENT = 1


@dataclass(frozen=True)
class Layout:
    """How an embedding lies in memory: row by row, no padding.

    Attributes:
        dtype: element type, a key of `ITEM_BYTES`.
        rows: vectors, one per placeholder token.
        width: elements per vector.
    """

    dtype: str
    rows: int
    width: int

    @property
    def size(self) -> int:
        """Bytes of the whole embedding."""
        return math.prod((self.rows, self.width, ITEM_BYTES[self.dtype]))


@dataclass(frozen=True)
class Greeting:
    """A peer's nonce, from a hello or a proof of this version."""

    nonce: bytes

    def encode(self) -> bytes:
        """Return the bytes on the wire."""
        return _GREETING.pack(MAGIC, VERSION, self.nonce)

    @classmethod
    def decode(cls, data: bytes) -> Greeting:
        """Read a greeting.

        Raises:
            ProtocolError: foreign bytes, or another version.
        """
        magic, version, nonce = _GREETING.unpack(data)
        if magic != MAGIC:
            raise ProtocolError(f"not an embedding port: {data[:8]!r}")
        if version != VERSION:
            raise ProtocolError(f"protocol version {version}; this side speaks {VERSION}")
        return cls(nonce)


@dataclass(frozen=True)
class Request:
    """What a client asks for.

    Attributes:
        verb: to have the embedding, or to say that it is not needed.
        identity: the embedding's media identity.
        reservation: the number that encode reported; 0 for none.
    """

    verb: Verb
    identity: str
    reservation: int = 0

    def encode(self) -> bytes:
        """Return the bytes on the wire."""
        return _REQUEST.pack(self.verb, self.identity.encode(), self.reservation)

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """Read a request.

        Raises:
            ProtocolError: it is none.
        """
        verb, identity, reservation = _REQUEST.unpack(data)
        try:
            return cls(Verb(verb), check_identity(identity.rstrip(b"\0").decode("ascii")), reservation)
        except ValueError as error:
            raise ProtocolError(f"no request: {error}") from None


def proof(token: str, side: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Return the MAC by which one side proves that it knows the stage token.

    Args:
        token: the stage token.
        side: `b"client"` or `b"server"`, so that neither can send the other's proof back.
        server_nonce: of the server's hello.
        client_nonce: of the client's proof.
    """
    said = b"|".join((MAGIC, str(VERSION).encode(), side, server_nonce, client_nonce))
    return hmac.digest(token.encode(), said, "sha256")


def check_proof(expected: bytes, found: bytes) -> None:
    """Compare two MACs in constant time.

    Raises:
        UnauthenticatedError: they differ.
    """
    if not hmac.compare_digest(expected, found):
        raise UnauthenticatedError("the other side does not know the stage token")


def encode_reply(layout: Layout | None) -> bytes:
    """Return the reply's head; None says that the embedding is absent."""
    if layout is None:
        return _REPLY.pack(Status.ABSENT, b"", 0, 0, 0)
    return _REPLY.pack(Status.FOUND, layout.dtype.encode(), layout.rows, layout.width, layout.size)


def check_reply(data: bytes, expected: Layout) -> None:
    """Check that the embedding which follows is there and laid out as the prompt needs it.

    Raises:
        ProtocolError: it is malformed, or the embedding is another one than expected.
        HandoffError: the peer does not have it.
    """
    status, dtype, rows, width, size = _REPLY.unpack(data)
    if status == Status.ABSENT:
        raise HandoffError("the peer no longer has it")
    found = (status, dtype.rstrip(b"\0"), rows, width, size)
    wanted = (Status.FOUND, expected.dtype.encode(), expected.rows, expected.width, expected.size)
    if found != wanted:
        raise ProtocolError(f"status, dtype, rows, width, size are {found}; the prompt needs {wanted}")
