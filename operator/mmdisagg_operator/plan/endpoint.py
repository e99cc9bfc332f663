"""Where something listens."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Endpoint:
    """A TCP address.

    Attributes:
        host: address to listen on or to connect to.
        port: TCP port.
    """

    host: str
    port: int

    @property
    def url(self) -> str:
        """The HTTP URL of the address."""
        return f"http://{self.host}:{self.port}"
