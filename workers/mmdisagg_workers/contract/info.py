"""What a worker tells about itself at `GET /mmdisagg/v1/info`.

The router builds every leg from these facts and serves only while the infos of its engines agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from .errors import ContractError
from .family import Family, Modality
from .integers import positive_int

CONTRACT_VERSION: Final = 1
"""Version of the wire between router and workers; engines of different versions are never mixed."""


@dataclass(frozen=True)
class Placeholder:
    """The token that a prompt repeats once per embedding row of a medium.

    Attributes:
        token_id: id in the model's vocabulary.
        text: as the prompt spells it.
    """

    token_id: int
    text: str


@dataclass(frozen=True)
class Geometry:
    """The shape facts of a model.

    Attributes:
        embedding_width: elements per embedding row that the vision tower puts out.
        merge_size: patches merged per token and axis; None in families without a grid.
        placeholders: placeholder token per modality.
    """

    embedding_width: int
    merge_size: int | None
    placeholders: Mapping[Modality, Placeholder]


@dataclass(frozen=True)
class Limits:
    """What one request may carry.

    Attributes:
        max_model_len: prompt and output tokens together.
        images: pictures per request.
        videos: videos per request.
        bytes: bytes per medium.
        pixels: pixels per picture or video frame.
    """

    max_model_len: int
    images: int
    videos: int
    bytes: int
    pixels: int


@dataclass(frozen=True)
class ModelInfo:
    """One worker's facts.

    Attributes:
        family: name of the model family.
        role: `encode`, `prefill`, `decode` or `aggregated`.
        topology: `E/P/D`, `E/PD`, `EP/D` or `PD`.
        revision: hash of what must agree between engines that serve one request.
        vllm_version: without its local suffix.
        contract_version: see `CONTRACT_VERSION`.
        embedding_dtype: element type of embeddings (`float32`, `float16`, `bfloat16`).
        geometry: shape facts of the model.
        limits: what one request may carry.
    """

    family: str
    role: str
    topology: str
    revision: str
    vllm_version: str
    contract_version: int
    embedding_dtype: str
    geometry: Geometry
    limits: Limits

    def to_json(self) -> str:
        """Return the body of the info endpoint."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> ModelInfo:
        """Read the body of the info endpoint.

        Raises:
            ContractError: the body is not what `to_json` writes (another version, or another server).
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            geometry = fields.pop("geometry")
            placeholders = {m: Placeholder(**p) for m, p in geometry.pop("placeholders").items()}
            return cls(
                geometry=Geometry(placeholders=placeholders, **geometry),
                limits=Limits(**fields.pop("limits")),
                **fields,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            remedy = f"run workers of contract version {CONTRACT_VERSION} ({error})"
            raise ContractError("info", text, remedy) from None

    def disagreement(self, other: ModelInfo) -> str | None:
        """Name the first fact in which two engines of one deployment differ, or return None."""
        others = asdict(other)
        for name, mine in asdict(self).items():
            theirs = others[name]
            if name != "role" and mine != theirs:
                return f"{name}: {self.role} has {mine!r}, {other.role} has {theirs!r}"
        return None


def geometry_from_config(family: Family, config: Mapping[str, Any]) -> Geometry:
    """Read the shape facts from a model's `config.json`; the family's entry says where each stands.

    Args:
        family: the model's.
        config: the file, with what it leaves out filled in from the defaults of its class.

    Raises:
        ContractError: a needed key is missing or of the wrong type.
    """
    width = _number(config, *family.width_key)
    return Geometry(
        embedding_width=width * (1 + _packed_layers(family, config)),
        merge_size=_number(config, "vision_config", "spatial_merge_size") if family.has_grid else None,
        placeholders={m: _placeholder(family, m, config) for m in family.media},
    )


def _packed_layers(family: Family, config: Mapping[str, Any]) -> int:
    key = family.packed_layers_key
    if key is None:
        return 0
    layers = _section(config, "vision_config").get(key)
    if not isinstance(layers, list):
        raise ContractError(
            f"config.json vision_config.{key}", layers, "the model's config.json must list layers"
        )
    return len(layers)


def _number(config: Mapping[str, Any], section: str, key: str) -> int:
    return _needed(_section(config, section).get(key), f"{section}.{key}")


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _placeholder(family: Family, modality: Modality, config: Mapping[str, Any]) -> Placeholder:
    keys = family.placeholder_id_keys[modality]
    value = next((config[key] for key in keys if key in config), None)
    return Placeholder(_needed(value, keys[0]), family.placeholders[modality])


def _needed(value: object, key: str) -> int:
    number = positive_int(value)
    if number is None:
        raise ContractError(
            f"config.json {key}", value, "the model's config.json must give a positive integer"
        )
    return number
