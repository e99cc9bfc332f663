"""Pictures that encode has seen: what it said about them, so that it need not be asked again.

Only inline media are remembered: a URL may bring other bytes the next time. An entry is a claim about
where the embedding lies, not a promise; when it cannot be loaded, its entry is forgotten and the medium
encoded again.

Where a header names the tenant, tenants share no entries: nobody learns by the time of an answer which
pictures another one has sent.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from .body import CHAT_MEDIA_FIELDS, ChatBody, present
from .legs import EncodedMedium
from .validation import ClientMedium, encoded

ENTRIES: Final = 4096
BYTES: Final = 16 * 1024 * 1024
"""Bytes of all entries together as JSON; in memory they take some times as much."""


@dataclass(frozen=True)
class Scope:
    """Whose pictures may be taken for the same.

    Attributes:
        revision: the engines'; another revision's may make another embedding.
        tenant: who asks, or "" where nobody is told apart.
    """

    revision: str
    tenant: str = ""


class MediaCache:
    """A bounded map from inline media to what encode reported, least recently used dropped first.

    Attributes:
        used_bytes: bytes of all entries as JSON.
    """

    def __init__(self, entries: int = ENTRIES, max_bytes: int = BYTES) -> None:
        self._entries = entries
        self._max_bytes = max_bytes
        self._known: OrderedDict[bytes, tuple[EncodedMedium, int]] = OrderedDict()
        self.used_bytes = 0

    def get(self, key: bytes | None) -> EncodedMedium | None:
        """Return what is known about a medium."""
        if key is None or key not in self._known:
            return None
        self._known.move_to_end(key)
        return self._known[key][0]

    def put(self, key: bytes | None, medium: EncodedMedium) -> None:
        """Remember a medium."""
        if key is None:
            return
        self.forget([key])
        size = len(key) + len(encoded([medium.medium, medium.entry]))
        self._known[key] = (medium, size)
        self.used_bytes += size
        while len(self._known) > self._entries or self.used_bytes > self._max_bytes:
            self._drop(next(iter(self._known)))

    def forget(self, keys: Iterable[bytes | None]) -> None:
        """Drop media whose embeddings may be lost."""
        for key in keys:
            if key is not None and key in self._known:
                self._drop(key)

    def _drop(self, key: bytes) -> None:
        self.used_bytes -= self._known.pop(key)[1]


def media_key(medium: ClientMedium, body: ChatBody, scope: Scope) -> bytes | None:
    """Return the key of an inline medium with its processor arguments; None for one behind a URL."""
    if medium.url[:5].lower() != "data:":
        return None
    arguments: dict[str, Any] = present(body, CHAT_MEDIA_FIELDS)
    told = [scope.revision, scope.tenant, medium.modality, arguments]
    digest = hashlib.sha256(encoded(told, order="sorted"))
    digest.update(b"\0" + medium.url.encode("utf-8", "surrogatepass"))
    return digest.digest()
