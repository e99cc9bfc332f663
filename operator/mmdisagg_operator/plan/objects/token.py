"""The Secret with the stage token: made once, with randomness from outside, and never changed."""

import base64

from mmdisagg_operator.api import MultimodalDisaggDeployment
from mmdisagg_operator.plan.site import STAGE_TOKEN_KEY, ClusterSite

from .identity import Manifest, child

MIN_TOKEN_CHARS = 32
"""Shorter tokens are refused by the workers."""


def stage_token_secret(deployment: MultimodalDisaggDeployment, token: str) -> Manifest:
    """Return the Secret that holds `token`."""
    name = ClusterSite.of(deployment).stage_token.name
    return {
        **child(deployment, "v1 Secret", name),
        "type": "Opaque",
        "immutable": True,
        "data": {STAGE_TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }


def is_stage_token(secret: Manifest) -> bool:
    """Whether a Secret, as the API server returns it, holds a token that workers accept."""
    encoded = (secret.get("data") or {}).get(STAGE_TOKEN_KEY, "")
    try:
        token = base64.b64decode(encoded, validate=True)
    except ValueError:
        return False
    return len(token) >= MIN_TOKEN_CHARS and token.isascii()
