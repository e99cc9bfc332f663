"""What a role says about its pods.

Closed and typed: a free pod template would let a deployment switch off what the plan relies on (`/dev/shm`,
probes, the side-channel address). Where Kubernetes' own type is deep (affinity, spread constraints, volumes,
security contexts) the field takes that object as it is and the API server checks it when the pods are made:
a copy of those schemas would be thousands of lines that age with every Kubernetes release.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from .enums import DecodeContract
from .names import Labels, ObjectName, OwnLabels, VolumeName
from .quantity import Quantity, StorageSize
from .reserved import EngineArgument, VariableName
from .structure import Structure, refused

KubernetesObject = Annotated[
    Mapping[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
]
"""An object of Kubernetes' own API, handed on unchanged."""


def _resource_amount(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise refused(f"{value!r} is no amount; write a number or a quantity such as 500m or 16Gi")
    return str(value)


_AMOUNT = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"

ResourceAmount = Annotated[
    str,
    BeforeValidator(_resource_amount),
    StringConstraints(pattern=_AMOUNT),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _AMOUNT,
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""An amount of a resource, as Kubernetes spells it."""


class Variable(Structure):
    """An environment variable of an engine's container."""

    name: VariableName
    """Its name; those that the plan sets are refused."""
    value: Annotated[str, StringConstraints(max_length=4096)]
    """Its value; numbers need quotes, as in a pod."""


_S = TypeVar("_S", bound=Structure)


def _unique(field: str) -> Callable[[tuple[_S, ...]], tuple[_S, ...]]:
    """Return the check that no two items have the same value of a field."""

    def check(items: tuple[_S, ...]) -> tuple[_S, ...]:
        keys = [getattr(item, field) for item in items]
        repeated = next((key for key in keys if keys.count(key) > 1), None)
        if repeated is not None:
            raise refused(f"{repeated!r} is given twice")
        return items

    return check


def _list_map(key: str) -> dict[str, Any]:
    """Return what makes a list one whose items are told apart by a key, as in a pod."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


Environment = Annotated[
    tuple[Variable, ...],
    Field(max_length=64, json_schema_extra=_list_map("name")),
    AfterValidator(_unique("name")),
]
"""Variables, each named once."""


class Resources(Structure):
    """Compute resources of the role's container."""

    limits: Mapping[str, ResourceAmount] = Field(default_factory=dict)
    """The most the container may use; GPUs are asked for here."""
    requests: Mapping[str, ResourceAmount] = Field(default_factory=dict)
    """What the scheduler sets aside; the limits where absent."""


class Toleration(Structure):
    """A node taint that the pods accept; fields as in a pod."""

    key: str | None = None
    """Key of the taint; every key where absent."""
    operator: str | None = None
    """How key and value are compared: `Exists` or `Equal`."""
    value: str | None = None
    """Value of the taint, for `Equal`."""
    effect: str | None = None
    """Effect of the taint; every effect where absent."""
    toleration_seconds: int | None = None
    """How long a `NoExecute` taint is tolerated, in seconds; for ever where absent."""


class Scheduling(Structure):
    """Where the role's pods run; every field as in a pod."""

    node_selector: Labels = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=64)
    """Taints that the pods accept."""
    affinity: KubernetesObject | None = None
    """Node and pod affinity."""
    topology_spread_constraints: tuple[KubernetesObject, ...] = Field(default=(), max_length=16)
    """How pods spread over zones or nodes."""
    priority_class_name: str | None = None
    """Priority of the pods."""
    runtime_class_name: str | None = None
    """Container runtime of the pods, such as `nvidia`."""


class LocalReference(Structure):
    """A Secret in the deployment's namespace."""

    name: ObjectName
    """Its name."""


PullSecrets = Annotated[
    tuple[LocalReference, ...],
    Field(max_length=16, json_schema_extra=_list_map("name")),
    AfterValidator(_unique("name")),
]
"""Secrets, each named once."""


def _one_source(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    if len(fields) != 1:
        raise refused(f"must have one volume source such as emptyDir, not {len(fields)}")
    return fields


VolumeSource = Annotated[
    Mapping[str, Any],
    AfterValidator(_one_source),
    WithJsonSchema(
        {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "x-kubernetes-preserve-unknown-fields": True,
        }
    ),
]
"""One of Kubernetes' volume sources, such as `{emptyDir: {}}`, handed on unchanged."""


class Volume(Structure):
    """A volume of the pods: a name and one of Kubernetes' volume sources."""

    # CEL sees no fields that the schema does not list, so they are counted: the name and the source.
    model_config = ConfigDict(extra="allow", json_schema_extra={"minProperties": 2, "maxProperties": 2})

    name: VolumeName
    """Name that `volumeMounts` refer to."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        _one_source(self.model_extra or {})
        return self


Volumes = Annotated[
    tuple[Volume, ...],
    Field(max_length=32, json_schema_extra=_list_map("name")),
    AfterValidator(_unique("name")),
]
"""Volumes, each named once."""


class VolumeMount(Structure):
    """Where a volume appears in the role's container; fields as in a pod."""

    name: VolumeName
    """Name of the volume: one of `volumes`."""
    mount_path: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    """Path in the container."""
    sub_path: str | None = None
    """Path within the volume."""
    read_only: bool = False
    """Whether the container cannot write to it."""


VolumeMounts = Annotated[
    tuple[VolumeMount, ...],
    Field(max_length=32, json_schema_extra=_list_map("mountPath")),
    AfterValidator(_unique("mount_path")),
]
"""Mounts, one at each path."""


class PodFields(Structure):
    """What every role has."""

    replicas: Annotated[int, Field(ge=0, le=10000)] | None = None
    """Number of pods. Absent: one at first, then whatever an autoscaler or `kubectl scale` says."""
    resources: Resources = Field(default_factory=Resources)
    """Compute resources of each pod."""
    scheduling: Scheduling = Field(default_factory=Scheduling)
    """Where the pods run."""
    image_pull_secrets: PullSecrets = ()
    """Secrets for the image registry."""
    labels: OwnLabels = Field(default_factory=dict)
    """More labels for the pods."""
    annotations: OwnLabels = Field(default_factory=dict)
    """More annotations for the pods."""
    volumes: Volumes = ()
    """More volumes for the pods."""
    volume_mounts: VolumeMounts = ()
    """Where those volumes appear."""
    pod_security_context: KubernetesObject | None = None
    """Security context of the pods, over the plan's (non-root)."""
    security_context: KubernetesObject | None = None
    """Security context of the container, over the plan's (read-only root, no privileges)."""


class EngineRole(PodFields):
    """A role that runs engines."""

    extra_args: tuple[EngineArgument, ...] = Field(default=(), max_length=64)
    """More vLLM arguments for this role, after those of `spec.engine.extraArgs`."""
    env: Environment = ()
    """More environment for this role, over that of `spec.engine.env`."""
    shm_size: StorageSize = "8Gi"
    """Size of the memory-backed `/dev/shm`; tensor parallelism needs far more than the usual 64Mi."""


class DecodeRole(EngineRole):
    """The role that generates tokens."""

    contract: DecodeContract = DecodeContract.AUTO
    """How decode is told about media whose KV blocks it receives; only with a prefill role."""


class RouterRole(PodFields):
    """The role that takes the clients' requests."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = None
    """Router image; the operator's own default where absent."""
    request_timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = 600
    """How long one request may take in all."""
    max_in_flight: Annotated[int, Field(ge=1, le=100000)] = 512
    """Requests that one router pod serves at once; above it clients get 429 with `Retry-After`. Each holds
    its pictures in the pod's memory until it is answered."""
    max_bytes_in_flight: Quantity = Field(default=2**30, json_schema_extra={"default": "1Gi"})
    """Bytes that the bodies of these requests may have together; above it clients get 429 too. The pod's
    memory limit should be four times as much."""
    tenant_header: (
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]*$", max_length=64)] | None
    ) = None
    """Request header, set by a gateway of yours, that names the tenant: tenants then share no remembered
    pictures. Absent: everyone shares them."""
