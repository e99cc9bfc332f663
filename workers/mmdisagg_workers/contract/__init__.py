"""What a decode engine must be told so that its prompt has exactly prefill's blocks and positions.

Pure: no engine, no tensor library, no I/O. The router builds requests from it, the worker makes tensors
from its descriptors.
"""

from .descriptor import TensorValues, ZeroEmbedding, decode_descriptor
from .errors import (
    ContractError,
    CountMismatchError,
    DescriptorError,
    DtypeError,
    GridError,
    IdentityError,
    ShapeError,
    TimingError,
    UnknownFamilyError,
)
from .family import FAMILIES, DecodeForm, Family, MediaFields, Modality, TimingField, family, resolve_family
from .grid import Grid, parse_grid, single_grid, token_count
from .identity import cache_salt, check_identity
from .info import CONTRACT_VERSION, Geometry, Limits, ModelInfo, Placeholder, geometry_from_config
from .medium import Medium, decode_part, media_fields, medium_from_report, placeholder_runs, prefill_part
from .wire import (
    FAMILY,
    INFO_PATH,
    LEG_BYTES,
    MEDIA,
    PART_BYTES,
    REVISION,
    STAGE_TOKEN,
    STAGE_TOKEN_HEADER,
    STAGES,
    TEXT_BYTES,
    TOPOLOGY,
    MediaLimits,
    Role,
    Topology,
    topology_of,
)

__all__ = [
    "CONTRACT_VERSION",
    "FAMILIES",
    "FAMILY",
    "INFO_PATH",
    "LEG_BYTES",
    "MEDIA",
    "PART_BYTES",
    "REVISION",
    "STAGES",
    "STAGE_TOKEN",
    "STAGE_TOKEN_HEADER",
    "TEXT_BYTES",
    "TOPOLOGY",
    "ContractError",
    "CountMismatchError",
    "DecodeForm",
    "DescriptorError",
    "DtypeError",
    "Family",
    "Geometry",
    "Grid",
    "GridError",
    "IdentityError",
    "Limits",
    "MediaFields",
    "MediaLimits",
    "Medium",
    "Modality",
    "ModelInfo",
    "Placeholder",
    "Role",
    "ShapeError",
    "TensorValues",
    "TimingError",
    "TimingField",
    "Topology",
    "UnknownFamilyError",
    "ZeroEmbedding",
    "cache_salt",
    "check_identity",
    "decode_descriptor",
    "decode_part",
    "family",
    "geometry_from_config",
    "media_fields",
    "medium_from_report",
    "parse_grid",
    "placeholder_runs",
    "prefill_part",
    "resolve_family",
    "single_grid",
    "token_count",
    "topology_of",
]
