"""Pictures that encode has seen: what it said about them, so that it need not be asked again.

Only inline media are remembered: a URL may bring other bytes the next time. An entry is a claim about
the embedding store, not a promise; when prefill cannot load an embedding, its entry is forgotten and the
medium encoded again.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from .body import CHAT_MEDIA_FIELDS, ChatBody, present
from .legs import EncodedMedium
from .validation import ClientMedium, encoded

ENTRIES: Final = 4096
"""Entries kept; one takes about a kilobyte."""


class MediaCache:
    """A bounded map from inline media to what encode reported, least recently used dropped first."""

    def __init__(self, entries: int = ENTRIES) -> None:
        self._entries = entries
        self._known: OrderedDict[bytes, EncodedMedium] = OrderedDict()

    def get(self, key: bytes | None) -> EncodedMedium | None:
        """Return what is known about a medium."""
        if key is None or key not in self._known:
            return None
        self._known.move_to_end(key)
        return self._known[key]

    def put(self, key: bytes | None, encoded: EncodedMedium) -> None:
        """Remember a medium."""
        if key is not None:
            self._known[key] = encoded
            self._known.move_to_end(key)
            if len(self._known) > self._entries:
                self._known.popitem(last=False)

    def forget(self, keys: Iterable[bytes | None]) -> None:
        """Drop media whose embeddings may be lost."""
        for key in keys:
            if key is not None:
                self._known.pop(key, None)


def media_key(medium: ClientMedium, body: ChatBody, revision: str) -> bytes | None:
    """Return the key of an inline medium with its processor arguments; None for one behind a URL.

    Another revision's engines may make another embedding of the same picture.
    """
    if medium.url[:5].lower() != "data:":
        return None
    arguments: dict[str, Any] = present(body, CHAT_MEDIA_FIELDS)
    digest = hashlib.sha256(encoded([revision, arguments], order="sorted"))
    digest.update(b"\0" + medium.modality.encode() + b"\0" + medium.url.encode("utf-8", "surrogatepass"))
    return digest.digest()
