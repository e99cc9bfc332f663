"""Encode's embedding port: one thread accepts, one thread per connection answers.

The threads live in the worker process. They spend their time in system calls that hold no interpreter lock,
so neither does a slow step of the model stop them, nor do they stop the model.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from .connection import HANDSHAKE_SECONDS, IDLE_SECONDS, Connection, greet_client
from .protocol import REQUEST_BYTES, HandoffError, decode_request, encode_reply
from .store import HostStore

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 64
"""Connections at once; more wait in the kernel's queue until one ends."""
_BACKLOG: Final = 128
_RETRY_SECONDS: Final = 0.2


class EmbeddingServer:
    """Serves a store; starts at once, ends with `close`."""

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        store: HostStore,
        count: Callable[[str, float], None],
        *,
        handshake_seconds: float = HANDSHAKE_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Listen.

        Args:
            host: address to listen on.
            port: TCP port; 0 for any free one.
            token: the stage token that clients must know.
            store: what is served.
            count: called with the name of a counter and an amount.
            handshake_seconds: how long a client may take to prove itself.
            idle_seconds: how long it may then take for each request and each chunk.

        Raises:
            OSError: the address cannot be listened on.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._token, self._store, self._count = token, store, count
        self._handshake_seconds, self._idle_seconds = handshake_seconds, idle_seconds
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closed = threading.Event()
        self._acceptor = threading.Thread(target=self._accept, name="embedding-port", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Stop listening; transfers that run are not waited for."""
        if not self._closed.is_set():
            self._closed.set()
            # Closing alone would not wake the thread that accepts.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            self._slots.acquire()
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                self._slots.release()
                self._pause(error)
                continue
            threading.Thread(
                target=self._converse, args=(sock, address[0]), name="embedding-peer", daemon=True
            ).start()

    def _pause(self, error: OSError) -> None:
        if not self._closed.wait(_RETRY_SECONDS):
            logger.error("embedding port: cannot accept: %s", error)

    def _converse(self, sock: socket.socket, peer: str) -> None:
        try:
            with Connection(sock, self._handshake_seconds) as connection:
                greet_client(connection, self._token)
                connection.limit(self._idle_seconds)
                while not connection.ended():
                    self._answer(connection)
        except (HandoffError, OSError) as error:
            self._count("refused_connections", 1)
            logger.warning("embedding port: connection of %s ended: %s", peer, error)
        finally:
            self._slots.release()

    def _answer(self, connection: Connection) -> None:
        identity = decode_request(connection.read(REQUEST_BYTES))
        started = time.monotonic()
        with self._store.reading(identity) as stored:
            connection.send(encode_reply(stored.layout if stored else None))
            if stored is None:
                self._count("serve_misses", 1)
                return
            connection.send_long(self._store.content(stored))
        self._store.fetched(identity)
        self._count("serves", 1)
        self._count("served_bytes", stored.layout.size)
        self._count("serve_seconds", time.monotonic() - started)
