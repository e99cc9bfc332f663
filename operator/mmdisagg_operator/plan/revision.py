"""The hash of what must agree between engines that serve one request."""

import hashlib
import json
from typing import Any, Final

from mmdisagg_operator.api import KvHandoff, Spec

CONTRACT_VERSION: Final = 1
"""Version of the wire between router and workers; a test compares it with the contract's own."""

_DIGITS: Final = 16


def revision(spec: Spec) -> str:
    """Return the revision of a spec: 16 hexadecimal digits.

    In it: model, image, what `spec.engine` says, media limits, handoffs and the contract's version. Not in
    it: which roles exist, their replicas, resources and own arguments, who may be fetched from, and which
    contract the router chooses; engines that differ in these can serve one request together.
    """
    facts: dict[str, Any] = {
        "model": spec.model.model_dump(mode="json", exclude={"token_secret_ref", "volume"}),
        "image": spec.image,
        "engine": spec.engine.model_dump(mode="json"),
        "limits": spec.media.limits.model_dump(mode="json"),
        "handoff": {
            "embedding": spec.embedding_handoff,
            "kv": spec.handoff.kv or KvHandoff.NIXL,
        },
        "contract": CONTRACT_VERSION,
    }
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
