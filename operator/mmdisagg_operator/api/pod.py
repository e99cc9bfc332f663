"""What a role says about its pods.

Closed and typed: a free pod template would let a deployment switch off what the plan relies on (`/dev/shm`,
probes, the side-channel address). Where Kubernetes' own type is deep (affinity, spread constraints, volumes,
security contexts) the field takes that object as it is and the API server checks it when the pods are made:
a copy of those schemas would be thousands of lines that age with every Kubernetes release.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Protocol, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from .enums import DecodeContract
from .quantity import StorageSize
from .reserved import EngineArgument, VariableName
from .structure import Structure, refused

KubernetesObject = Annotated[
    Mapping[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
]
"""An object of Kubernetes' own API, handed on unchanged."""

Labels = Annotated[Mapping[str, str], Field(max_length=64)]
"""Labels or annotations by key."""


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


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_N = TypeVar("_N", bound=_Named)


def _unique_names(items: tuple[_N, ...]) -> tuple[_N, ...]:
    names = [item.name for item in items]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise refused(f"{repeated!r} is given twice")
    return items


BY_NAME: Final[dict[str, Any]] = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}

Environment = Annotated[
    tuple[Variable, ...],
    Field(max_length=64, json_schema_extra=BY_NAME),
    AfterValidator(_unique_names),
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

    name: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    """Its name."""


class Volume(Structure):
    """A volume of the pods: a name and one of Kubernetes' volume sources."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    """Name that `volumeMounts` refer to."""


Volumes = Annotated[
    tuple[Volume, ...],
    Field(max_length=32, json_schema_extra=BY_NAME),
    AfterValidator(_unique_names),
]
"""Volumes, each named once."""


class VolumeMount(Structure):
    """Where a volume appears in the role's container; fields as in a pod."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    """Name of the volume."""
    mount_path: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    """Path in the container."""
    sub_path: str | None = None
    """Path within the volume."""
    read_only: bool = False
    """Whether the container cannot write to it."""


class PodFields(Structure):
    """What every role has."""

    replicas: Annotated[int, Field(ge=0, le=10000)] | None = None
    """Number of pods. Absent: one at first, then whatever an autoscaler or `kubectl scale` says."""
    resources: Resources = Field(default_factory=Resources)
    """Compute resources of each pod."""
    scheduling: Scheduling = Field(default_factory=Scheduling)
    """Where the pods run."""
    image_pull_secrets: tuple[LocalReference, ...] = Field(default=(), max_length=16)
    """Secrets for the image registry."""
    labels: Labels = Field(default_factory=dict)
    """More labels for the pods."""
    annotations: Labels = Field(default_factory=dict)
    """More annotations for the pods."""
    volumes: Volumes = ()
    """More volumes for the pods."""
    volume_mounts: tuple[VolumeMount, ...] = Field(default=(), max_length=32)
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
