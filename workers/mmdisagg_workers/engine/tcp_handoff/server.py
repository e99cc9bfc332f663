"""Encode's embedding port: one thread accepts, one thread per connection answers.

Connections are bounded twice. Of those that have proven nothing yet the oldest gives way, so whoever holds
connections open for nothing shuts nobody out; a proof takes milliseconds. Those that have proven themselves
wait for a place.

The threads live in the worker process. They spend their time in system calls that hold no interpreter lock,
so neither does a slow step of the model stop them, nor do they stop the model.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from .connection import HANDSHAKE_SECONDS, IDLE_SECONDS, Connection, greet_client
from .protocol import REQUEST_BYTES, HandoffError, ProtocolError, Request, Verb, encode_reply
from .store import HostStore

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 64
"""Connections at once of clients that know the token."""
MAX_STRANGERS: Final = 64
"""Connections at once of clients that have not proven it."""
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
        ended: Callable[[int], None] = lambda number: None,
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
            ended: called with the number of a reservation that ended.
            handshake_seconds: how long a client may take to prove itself.
            idle_seconds: how long it may then take for each request and each chunk.

        Raises:
            OSError: the address cannot be listened on.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._token, self._store, self._count, self._ended = token, store, count, ended
        self._handshake_seconds, self._idle_seconds = handshake_seconds, idle_seconds
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._strangers: OrderedDict[Connection, None] = OrderedDict()
        self._lock = threading.Lock()
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
            try:
                sock, address = self._listener.accept()
                connection = Connection(sock, self._handshake_seconds)
                self._take_in(connection)
                threading.Thread(
                    target=self._converse, args=(connection, address[0]), name="embedding-peer", daemon=True
                ).start()
            except (OSError, RuntimeError) as error:  # no descriptor, no thread
                self._pause(error)

    def _take_in(self, connection: Connection) -> None:
        with self._lock:
            self._strangers[connection] = None
            if len(self._strangers) > MAX_STRANGERS:
                self._strangers.popitem(last=False)[0].break_off()

    def _known(self, connection: Connection) -> None:
        with self._lock:
            self._strangers.pop(connection, None)

    def _pause(self, error: Exception) -> None:
        if not self._closed.wait(_RETRY_SECONDS):
            logger.error("embedding port: cannot accept: %s", error)

    def _converse(self, connection: Connection, peer: str) -> None:
        try:
            with connection:
                try:
                    greet_client(connection, self._token)
                finally:
                    self._known(connection)
                connection.limit(self._idle_seconds)
                with self._place():
                    while not connection.ended():
                        self._answer(connection)
        except (HandoffError, OSError) as error:
            self._count("refused_connections", 1)
            logger.warning("embedding port: connection of %s ended: %s", peer, error)

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(timeout=self._idle_seconds):
            raise ProtocolError(f"{MAX_CONNECTIONS} others are being served")
        try:
            yield
        finally:
            self._places.release()

    def _answer(self, connection: Connection) -> None:
        request = Request.decode(connection.read(REQUEST_BYTES))
        if request.verb is Verb.FETCH and not self._send(connection, request.identity):
            return
        if request.reservation and self._store.end(request.reservation):
            self._ended(request.reservation)

    def _send(self, connection: Connection, identity: str) -> bool:
        started = time.monotonic()
        with self._store.reading(identity) as stored:
            connection.send(encode_reply(stored.layout if stored else None))
            if stored is None:
                self._count("serve_misses", 1)
                return False
            connection.send_long(self._store.content(stored))
        self._count("serves", 1)
        self._count("served_bytes", stored.layout.size)
        self._count("serve_seconds", time.monotonic() - started)
        return True
