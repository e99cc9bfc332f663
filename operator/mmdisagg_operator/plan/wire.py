"""JSON that travels in arguments and variables: compact, keys in their given order, the same every time."""

import json
from typing import Any

from mmdisagg_operator.api import Spec


def compact(value: Any) -> str:
    """Return a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def media(spec: Spec) -> str:
    """Return the media policy that workers and router read (`MMDISAGG_MEDIA`)."""
    limits = spec.media.limits
    return compact(
        {
            "allowedHosts": spec.media.allowed_hosts,
            "allowPrivateNetworks": spec.media.allow_private_networks,
            "limits": {
                "images": limits.images,
                "videos": limits.videos,
                "bytes": limits.bytes,
                "pixels": limits.pixels,
            },
        }
    )
