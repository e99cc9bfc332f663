"""Media identities, and the cache salt made of them.

vLLM hashes the pixels of every medium (`mm_hash`, lower-case hexadecimal) and mixes that hash into the
hashes of the KV blocks. Two pictures of one size have equal prompts; only the identity tells them
apart, so it must reach every stage: as `uuid` of a media part, or, where decode gets token ids alone,
as `cache_salt`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from .errors import IdentityError

_IDENTITY = re.compile(r"[0-9a-f]{16,128}")


def check_identity(value: object, field: str = "uuid") -> str:
    """Return `value` when it is a well-formed media identity.

    An identity becomes a cache key and, in a shared volume, a file name: anything but hexadecimal
    digits is refused.

    Raises:
        IdentityError: not 16 to 128 lower-case hexadecimal digits.
    """
    if isinstance(value, str) and _IDENTITY.fullmatch(value):
        return value
    raise IdentityError(field, value, "give the identity that an engine reported: 16 to 128 of [0-9a-f]")


def cache_salt(identities: Sequence[str], client_salt: str | None = None) -> str:
    """Derive the cache salt of a request: its media in their order, and the client's own salt.

    The result is namespaced, so that no client salt can equal the salt of another client's pictures.

    Returns:
        64 hexadecimal digits.

    Raises:
        IdentityError: an identity is malformed.
    """
    digest = hashlib.sha256(b"mmdisagg.salt.v1\0")
    for identity in identities:
        digest.update(check_identity(identity).encode() + b"\0")
    if client_salt is not None:
        digest.update(b"client\0" + client_salt.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
