"""The resource `MultimodalDisaggDeployment` (mmdisagg.io/v1alpha1, short name mmdd).

The one source of its schema, defaults, rules and printer columns: `python -m mmdisagg_operator.api.crd`
writes the CRD from these types. `load_deployment` is the way in.
"""

from .enums import (
    ENGINE_ROLES,
    DecodeContract,
    Device,
    EmbeddingHandoff,
    Family,
    KvHandoff,
    ModelSource,
    Role,
    RolloutStrategy,
    Topology,
)
from .errors import Problem, ResourceError
from .loading import load_deployment
from .pod import DecodeRole, EngineRole, PodFields, RouterRole
from .resource import API_VERSION, KIND, Metadata, MultimodalDisaggDeployment
from .spec import Engine, Handoff, Media, MediaLimits, Model, SharedVolume, Spec, Tcp
from .status import Condition, ConditionStatus, ConditionType, RoleStatus, Status

__all__ = [
    "API_VERSION",
    "ENGINE_ROLES",
    "KIND",
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "DecodeContract",
    "DecodeRole",
    "Device",
    "EmbeddingHandoff",
    "Engine",
    "EngineRole",
    "Family",
    "Handoff",
    "KvHandoff",
    "Media",
    "MediaLimits",
    "Metadata",
    "Model",
    "ModelSource",
    "MultimodalDisaggDeployment",
    "PodFields",
    "Problem",
    "ResourceError",
    "Role",
    "RoleStatus",
    "RolloutStrategy",
    "RouterRole",
    "SharedVolume",
    "Spec",
    "Status",
    "Tcp",
    "Topology",
    "load_deployment",
]
