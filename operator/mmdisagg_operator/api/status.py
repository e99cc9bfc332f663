"""The state, as the operator last saw it."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from .structure import Structure


class ConditionType(StrEnum):
    """The conditions of a deployment."""

    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    ENCODE_READY = "EncodeReady"
    PREFILL_READY = "PrefillReady"
    DECODE_READY = "DecodeReady"
    ROUTER_READY = "RouterReady"


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


def _publish_no_defaults(schema: dict[str, Any]) -> None:
    """A status holds what the operator has written, so the API server adds nothing to it."""
    for field in schema["properties"].values():
        field.pop("default", None)


class _Observed(Structure):
    """A part of the status: fields that a newer operator has written are ignored, not refused."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra=_publish_no_defaults, validate_by_alias=True, validate_by_name=True
    )


class Condition(_Observed):
    """One condition, as `metav1.Condition`."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=316)]
    """Which condition; see `ConditionType`."""
    status: ConditionStatus
    """Whether it holds."""
    reason: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=1024)
    ]
    """Why, in one word that does not change between releases."""
    message: Annotated[str, StringConstraints(max_length=32768)] = ""
    """Why, for people, with what to do next."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When `status` last changed (RFC 3339)."""
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """Generation of the spec that the condition speaks about."""


class RoleStatus(_Observed):
    """The pods of one role."""

    desired: Annotated[int, Field(ge=0)] = 0
    """Pods wanted."""
    ready: Annotated[int, Field(ge=0)] = 0
    """Pods that serve."""
    updated: Annotated[int, Field(ge=0)] = 0
    """Pods of the current revision."""
    summary: str = ""
    """Ready and wanted pods for people, such as `1/2`."""


class RoleStatuses(_Observed):
    """The pods of each role that the deployment has."""

    encode: RoleStatus | None = None
    """Pods that encode."""
    prefill: RoleStatus | None = None
    """Pods that prefill."""
    decode: RoleStatus | None = None
    """Pods that decode."""
    router: RoleStatus | None = None
    """Pods of the router."""


class Status(_Observed):
    """What the operator last saw, and for which generation."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """Generation of the spec that this status speaks about."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    """Conditions, one of each type."""
    roles: RoleStatuses | None = None
    """Pods by role."""
    revision: str = ""
    """Revision that serves; engines of different revisions never share a request."""
    url: str = ""
    """Where clients reach the router inside the cluster."""
