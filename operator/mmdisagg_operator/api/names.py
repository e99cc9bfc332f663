"""Names of objects, volumes and labels that the resource refers to, in Kubernetes' own spelling.

What begins with `mmdisagg-` (volumes) or `mmdisagg.io/` (labels) is the plan's: a user's own would take the
place of what the plan, the Services and the NetworkPolicies rely on, or lose it without a word.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, StringConstraints

from .structure import refused

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"

OBJECT_NAME: Final = rf"^{_LABEL}(\.{_LABEL})*$"
"""Pattern of a DNS subdomain (RFC 1123)."""

ObjectName = Annotated[str, StringConstraints(pattern=OBJECT_NAME, max_length=253)]
"""Name of a Secret, a claim or a storage class in the deployment's namespace: a DNS subdomain (RFC 1123)."""

SecretKey = Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]
"""Key of a Secret's data."""

RESERVED_VOLUMES: Final = "mmdisagg-"
"""Volumes with this beginning are the plan's."""

RESERVED_LABELS: Final = "mmdisagg.io/"
"""Labels and annotations of pods with this beginning are the plan's."""

_VOLUME_RULE: Final[dict[str, Any]] = {
    "rule": f"!self.startsWith('{RESERVED_VOLUMES}')",
    "message": f"names that begin with {RESERVED_VOLUMES} are the plan's; choose another",
}
_LABEL_RULE: Final[dict[str, Any]] = {
    "rule": f"self.all(key, !key.startsWith('{RESERVED_LABELS}'))",
    "message": f"keys that begin with {RESERVED_LABELS} are the plan's; remove them",
}


def _check_volume(name: str) -> str:
    if name.startswith(RESERVED_VOLUMES):
        raise refused(f"{name!r}: {_VOLUME_RULE['message']}")
    return name


def _check_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    reserved = next((key for key in labels if key.startswith(RESERVED_LABELS)), None)
    if reserved is not None:
        raise refused(f"{reserved!r}: {_LABEL_RULE['message']}")
    return labels


VolumeName = Annotated[
    str,
    StringConstraints(pattern=f"^{_LABEL}$", max_length=63),
    AfterValidator(_check_volume),
    Field(json_schema_extra={"x-kubernetes-validations": [_VOLUME_RULE]}),
]
"""Name of a volume of the user's own: a DNS label."""

Labels = Annotated[Mapping[str, str], Field(max_length=64)]
"""Labels or annotations by key."""

OwnLabels = Annotated[
    Labels,
    AfterValidator(_check_labels),
    Field(json_schema_extra={"x-kubernetes-validations": [_LABEL_RULE]}),
]
"""Labels or annotations that users add to pods."""
