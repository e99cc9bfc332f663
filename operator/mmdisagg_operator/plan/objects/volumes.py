"""What pods can write to, although their root is read-only, and what they share.

| mount         | who               | what                                                                |
|---------------|-------------------|---------------------------------------------------------------------|
| `/dev/shm`    | engines           | memory; tensor parallelism and NIXL need far more than 64 MiB       |
| `/cache`      | engines           | the home directory: downloaded weights, compiled kernels            |
| `/tmp`        | all               | sockets and scratch files                                           |
| `/embeddings` | encode, consumer  | the volume of SharedVolume; only encode writes                       |
| the model     | engines           | weights of a model with source Path, read-only                      |

A mount of the user's own at `/cache` or `/tmp` takes the place of the plan's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from mmdisagg_operator.api import MultimodalDisaggDeployment, PodFields, Role
from mmdisagg_operator.plan.handoff import shares_embeddings
from mmdisagg_operator.plan.site import EMBEDDING_MOUNT, ClusterSite

from .identity import Manifest, child, child_name

CACHE_MOUNT: Final = "/cache"
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - a mount point, not a file
_SCRATCH: Final = "/tmp"  # noqa: S108 - a mount point, not a file
_REPLACEABLE: Final = (CACHE_MOUNT, _SCRATCH)
DEFAULT_CAPACITY: Final = "20Gi"


@dataclass(frozen=True)
class Mounted:
    """A volume and where it appears.

    Attributes:
        name: the volume's name.
        source: Kubernetes' volume source, such as `{"emptyDir": {}}`.
        path: where the container sees it.
        read_only: whether the container cannot write to it.
    """

    name: str
    source: Manifest
    path: str
    read_only: bool = False

    @property
    def volume(self) -> Manifest:
        """The entry of the pod's volumes."""
        return {"name": self.name, **self.source}

    @property
    def mount(self) -> Manifest:
        """The entry of the container's mounts."""
        mount: Manifest = {"name": self.name, "mountPath": self.path}
        return {**mount, "readOnly": True} if self.read_only else mount


def volumes(deployment: MultimodalDisaggDeployment, role: Role, site: ClusterSite) -> Manifest:
    """Return `volumes` of a role's pods and `volumeMounts` of their container."""
    fields = deployment.spec.role(role) or deployment.spec.router
    taken = {mount.mount_path.rstrip("/") for mount in fields.volume_mounts} & set(_REPLACEABLE)
    planned = [one for one in _planned(deployment, role, site) if one.path not in taken]
    return {
        "volumes": [one.volume for one in planned] + _own_volumes(fields),
        "volumeMounts": [one.mount for one in planned] + _own_mounts(fields),
    }


def _planned(deployment: MultimodalDisaggDeployment, role: Role, site: ClusterSite) -> Iterator[Mounted]:
    spec = deployment.spec
    engine = spec.engine_role(role)
    if engine is not None:
        memory = {"medium": "Memory", "sizeLimit": engine.shm_size}
        yield Mounted("mmdisagg-shm", {"emptyDir": memory}, _SHARED_MEMORY)
        yield Mounted("mmdisagg-cache", {"emptyDir": {}}, CACHE_MOUNT)
    yield Mounted("mmdisagg-tmp", {"emptyDir": {}}, _SCRATCH)
    if shares_embeddings(spec, role):
        claim = {"persistentVolumeClaim": {"claimName": claim_name(deployment)}}
        yield Mounted("mmdisagg-embeddings", claim, EMBEDDING_MOUNT, read_only=role is not Role.ENCODE)
    if engine is not None and spec.model.volume is not None:
        yield Mounted("mmdisagg-model", dict(spec.model.volume), site.model, read_only=True)


def _own_volumes(fields: PodFields) -> list[Any]:
    return [volume.model_dump(mode="json", by_alias=True) for volume in fields.volumes]


def _own_mounts(fields: PodFields) -> list[Any]:
    return [
        mount.model_dump(mode="json", by_alias=True, exclude_defaults=True) for mount in fields.volume_mounts
    ]


def claim_name(deployment: MultimodalDisaggDeployment) -> str:
    """Return the name of the claim that embeddings travel through: the user's, or the one that is made."""
    shared = deployment.spec.handoff.shared_volume
    if shared is not None and shared.persistent_volume_claim is not None:
        return shared.persistent_volume_claim.claim_name
    return child_name(deployment, "embeddings")


def embedding_claim(deployment: MultimodalDisaggDeployment) -> Manifest | None:
    """Return the claim to make, or None where nothing is shared or the user has a claim."""
    spec = deployment.spec
    shared = spec.handoff.shared_volume
    if not shares_embeddings(spec, Role.ENCODE) or (
        shared is not None and shared.persistent_volume_claim is not None
    ):
        return None
    storage_class = shared.storage_class_name if shared else None
    capacity = (shared.capacity if shared else None) or DEFAULT_CAPACITY
    wanted: Manifest = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": capacity}},
        **({"storageClassName": storage_class} if storage_class else {}),
    }
    return {**child(deployment, "v1 PersistentVolumeClaim", claim_name(deployment)), "spec": wanted}
