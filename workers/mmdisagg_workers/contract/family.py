"""The decode contract, one entry per model family.

Sources: field names and what the engine does with them are those of vLLM 0.32.0 (the models'
`embedding_fields` and `get_mrope_input_positions`); each entry was measured against an aggregated engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from .errors import UnknownFamilyError

Modality: TypeAlias = Literal["image", "video"]
MODALITIES: Final[tuple[Modality, ...]] = ("image", "video")


class DecodeForm(StrEnum):
    """In which form decode is told about the media whose KV blocks it receives."""

    ZERO_EMBEDDING = "ZeroEmbedding"
    """The unexpanded prompt, and per medium its grid with a zero embedding of the right shape."""
    METADATA_ONLY = "MetadataOnly"
    """The unexpanded prompt, and per medium its grid alone."""
    EXPANDED_PROMPT = "ExpandedPrompt"
    """Prefill's expanded prompt token ids and no media; identities enter as cache salt."""


@dataclass(frozen=True)
class TimingField:
    """The timing that a video's temporal positions depend on.

    Attributes:
        name: field name in vLLM's processed inputs.
        as_tensor: whether the chat API takes it as a tensor (a descriptor) or as a JSON list.
    """

    name: str
    as_tensor: bool


@dataclass(frozen=True)
class MediaFields:
    """What must travel with one medium of a modality.

    Attributes:
        embeds: name of the embedding field and of the chat part's type (`image_embeds`).
        grid: name of the grid field, or None in families without a grid.
        timing: timing field of a video, or None.
    """

    embeds: str
    grid: str | None = None
    timing: TimingField | None = None


@dataclass(frozen=True)
class Family:
    """A model family and how its decode stage is told about media.

    Attributes:
        name: as the resource spells it (`spec.model.family`).
        model_types: values of `model_type` in `config.json` that belong to it.
        media: fields per modality; a modality that is absent cannot be served.
        decode_forms: forms that give right answers; the first is the default.
        placeholders: placeholder token text per modality, as the prompt spells it.
        placeholder_id_keys: key of the placeholder's token id in `config.json`, per modality.
        width_key: section and key of `config.json` that say how wide an embedding row is, in elements.
        packed_layers_key: key of the vision section that lists the layers whose outputs are packed into the
            same row, beside the last one's; None where there are none.
    """

    name: str
    model_types: tuple[str, ...]
    media: Mapping[Modality, MediaFields]
    decode_forms: tuple[DecodeForm, ...]
    placeholders: Mapping[Modality, str]
    placeholder_id_keys: Mapping[Modality, tuple[str, ...]]
    width_key: tuple[str, str]
    packed_layers_key: str | None = None

    @property
    def default_form(self) -> DecodeForm:
        """The decode form that `Auto` stands for."""
        return self.decode_forms[0]

    @property
    def has_grid(self) -> bool:
        """Whether positions depend on a grid (M-RoPE)."""
        return any(fields.grid for fields in self.media.values())


_QWEN_FORMS = (DecodeForm.ZERO_EMBEDDING, DecodeForm.METADATA_ONLY)
_QWEN_PLACEHOLDERS: Mapping[Modality, str] = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
_QWEN_IDS: Mapping[Modality, tuple[str, ...]] = {"image": ("image_token_id",), "video": ("video_token_id",)}


def _qwen(
    name: str,
    model_types: tuple[str, ...],
    timing: TimingField | None,
    width: str = "out_hidden_size",
    packed_layers: str | None = None,
) -> Family:
    media: Mapping[Modality, MediaFields] = {
        "image": MediaFields("image_embeds", "image_grid_thw"),
        "video": MediaFields("video_embeds", "video_grid_thw", timing),
    }
    width_key = ("vision_config", width)
    return Family(
        name, model_types, media, _QWEN_FORMS, _QWEN_PLACEHOLDERS, _QWEN_IDS, width_key, packed_layers
    )


_SECONDS_PER_GRID = TimingField("second_per_grid_ts", as_tensor=True)
_TIMESTAMPS = TimingField("timestamps", as_tensor=False)

# Qwen2-VL's processor makes no timing: every engine counts one second per grid step.
QWEN2_VL: Final = _qwen("Qwen2-VL", ("qwen2_vl",), None, width="hidden_size")
QWEN2_5_VL: Final = _qwen("Qwen2.5-VL", ("qwen2_5_vl",), _SECONDS_PER_GRID)
QWEN3_VL: Final = _qwen(
    "Qwen3-VL", ("qwen3_vl", "qwen3_vl_moe"), _TIMESTAMPS, packed_layers="deepstack_visual_indexes"
)
LLAVA: Final = Family(
    name="LLaVA",
    model_types=("llava",),
    media={"image": MediaFields("image_embeds")},
    decode_forms=(DecodeForm.EXPANDED_PROMPT, DecodeForm.ZERO_EMBEDDING),
    placeholders={"image": "<image>"},
    placeholder_id_keys={"image": ("image_token_index", "image_token_id")},
    width_key=("text_config", "hidden_size"),
)

FAMILIES: Final[Mapping[str, Family]] = {f.name: f for f in (QWEN2_VL, QWEN2_5_VL, QWEN3_VL, LLAVA)}
"""Every family with a decode contract, by name."""


def family(name: str) -> Family:
    """Return the entry called `name`.

    Raises:
        UnknownFamilyError: no such entry; the message lists those that exist.
    """
    try:
        return FAMILIES[name]
    except (KeyError, TypeError):
        raise UnknownFamilyError("family", name, f"known families: {', '.join(FAMILIES)}") from None


def resolve_family(config: Mapping[str, object]) -> Family:
    """Return the family of a model from its `config.json`.

    Args:
        config: the parsed file.

    Raises:
        UnknownFamilyError: `model_type` belongs to no entry; the message lists those that exist.
    """
    model_type = config.get("model_type")
    for entry in FAMILIES.values():
        if model_type in entry.model_types:
            _check_vision_tower(entry, config)
            return entry
    known = ", ".join(f"{f.name} ({', '.join(f.model_types)})" for f in FAMILIES.values())
    raise UnknownFamilyError("model_type", model_type, f"known families: {known}")


def _check_vision_tower(entry: Family, config: Mapping[str, object]) -> None:
    # Pixtral is published under model_type "llava" too, but breaks its rows with tokens of their own.
    vision = config.get("vision_config")
    tower = vision.get("model_type") if isinstance(vision, Mapping) else None
    if entry is LLAVA and tower == "pixtral":
        raise UnknownFamilyError(
            "vision_config.model_type", tower, "LLaVA is served with a CLIP vision tower"
        )
