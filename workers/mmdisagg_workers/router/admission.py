"""What is served at once, in requests and in bytes: above either limit a client is told to come back.

Each admitted request holds its body, its media inline, until it is answered: the limits are what bounds the
router's memory. So a request is admitted before its body is read, and one that is refused never is: the
server reads off and drops what the client still sends, for some seconds, so that the client sees the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import OverloadedError


class Slot:
    """The place of one admitted request."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._size = 0

    def hold(self, size: int) -> None:
        """Count the request's body as `size` bytes, at least.

        Raises:
            OverloadedError: with it the requests in flight would hold too much. One that is alone may.
        """
        more = size - self._size
        if more > 0:
            self._admission.take(more, alone=self._admission.body_bytes == self._size)
            self._size = size

    def free(self) -> None:
        """Give the bytes back."""
        self._admission.body_bytes -= self._size
        self._size = 0


class Admission:
    """The requests in flight.

    Attributes:
        limit: requests at most.
        byte_limit: bytes of their bodies at most.
        in_flight: requests now.
        body_bytes: bytes of their bodies now.
    """

    def __init__(self, limit: int, byte_limit: int) -> None:
        self.limit = limit
        self.byte_limit = byte_limit
        self.in_flight = 0
        self.body_bytes = 0

    @contextmanager
    def slot(self) -> Iterator[Slot]:
        """Hold a slot for the block, however it ends.

        Raises:
            OverloadedError: all are taken.
        """
        if self.in_flight >= self.limit:
            raise OverloadedError(
                f"The router serves {self.in_flight} requests, at most {self.limit}; try again later."
            )
        self.in_flight += 1
        slot = Slot(self)
        try:
            yield slot
        finally:
            self.in_flight -= 1
            slot.free()

    def take(self, size: int, *, alone: bool) -> None:
        """Count bytes of a body.

        Args:
            size: how many more.
            alone: whether no other request holds any.

        Raises:
            OverloadedError: they are too many.
        """
        if not alone and self.body_bytes + size > self.byte_limit:
            raise OverloadedError(
                f"The router's requests hold {self.body_bytes} bytes, at most {self.byte_limit}; "
                "try again later."
            )
        self.body_bytes += size
