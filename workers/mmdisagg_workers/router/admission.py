"""How many requests are served at once: above the limit a client is told to come back.

Each admitted request holds its body, its media inline, until it is answered: the limit is what bounds the
router's memory. So a request is admitted before its body is read, and one that is refused never is: the
server reads off and drops what the client still sends, for some seconds, so that the client sees the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import OverloadedError


class Admission:
    """The slots of the requests in flight.

    Attributes:
        limit: slots in all.
        in_flight: slots that are taken.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a slot for the block, however it ends.

        Raises:
            OverloadedError: all are taken.
        """
        if self.in_flight >= self.limit:
            raise OverloadedError(
                f"The router serves {self.in_flight} requests, at most {self.limit}; try again later."
            )
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
