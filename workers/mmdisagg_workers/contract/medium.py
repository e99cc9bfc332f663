"""One encoded medium on its way from encode to prefill and decode.

`medium_from_report` reads what an engine reported about a medium (`ec_transfer_params` of vLLM's answer)
and checks that nothing is missing that a later stage's positions depend on; `prefill_part` and
`decode_part` spell the medium for the later stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .descriptor import TensorValues, ZeroEmbedding
from .errors import ContractError, CountMismatchError, TimingError
from .family import DecodeForm, Family, MediaFields, Modality
from .grid import Grid, single_grid, token_count
from .identity import check_identity
from .info import ModelInfo


@dataclass(frozen=True)
class Medium:
    """What the later stages need to know about one picture or video.

    Attributes:
        modality: `image` or `video`.
        identity: hash of the content, made by an engine.
        tokens: placeholder tokens that it occupies in the expanded prompt.
        grid: patches as (time, height, width), or None in families without a grid.
        timing: values of the family's timing field, or None for a picture.
    """

    modality: Modality
    identity: str
    tokens: int
    grid: Grid | None = None
    timing: tuple[float, ...] | None = None


def medium_from_report(
    family: Family,
    info: ModelInfo,
    modality: Modality,
    identity: str,
    metadata: Mapping[str, Any],
    placeholder_run: int | None = None,
) -> Medium:
    """Read what an engine reported about one medium.

    Args:
        family: decode contract of the model.
        info: shape facts of the model.
        modality: what the client sent.
        identity: key in the engine's `ec_transfer_params`.
        metadata: the `metadata` object under that key.
        placeholder_run: placeholder tokens counted in the engine's expanded prompt; needed in families
            without a grid, checked against the grid in the others.

    Raises:
        ContractError: the family does not serve the modality, or a fact is missing or malformed.
    """
    fields = media_fields(family, modality)
    check_identity(identity, "ec_transfer_params")
    if fields.grid is None:
        if not placeholder_run:
            raise CountMismatchError(
                "prompt_token_ids", placeholder_run, "the encode stage must return its expanded prompt"
            )
        return Medium(modality, identity, placeholder_run)
    grid = single_grid(metadata.get(fields.grid), fields.grid)
    tokens = token_count([grid], info.geometry.merge_size or 0, fields.grid)
    if placeholder_run is not None and placeholder_run != tokens:
        remedy = f"the expanded prompt has {placeholder_run} placeholder tokens, the grid says {tokens}"
        raise CountMismatchError(fields.grid, list(grid), remedy)
    return Medium(modality, identity, tokens, grid, _timing(fields, metadata))


def prefill_part(family: Family, info: ModelInfo, medium: Medium) -> dict[str, Any]:
    """Spell a medium for the stage that loads its embedding from the encoder cache.

    With a grid the part carries metadata alone, since the embedding arrives by the handoff; without one
    vLLM needs a tensor of the right size, so it carries a zero embedding.
    """
    form = DecodeForm.METADATA_ONLY if family.has_grid else DecodeForm.ZERO_EMBEDDING
    return _part(family, info, medium, form)


def decode_part(family: Family, info: ModelInfo, medium: Medium, form: DecodeForm) -> dict[str, Any]:
    """Spell a medium for the decode stage, whose KV blocks for it arrive from prefill.

    Raises:
        ContractError: the family has no such decode form, or the form carries no media parts.
    """
    if form not in family.decode_forms or form is DecodeForm.EXPANDED_PROMPT:
        known = ", ".join(f for f in family.decode_forms if f is not DecodeForm.EXPANDED_PROMPT)
        raise ContractError("decode.contract", str(form), f"{family.name} takes media parts as: {known}")
    return _part(family, info, medium, form)


def placeholder_runs(prompt_token_ids: Sequence[int], placeholder_id: int) -> list[int]:
    """Return the lengths of the runs of `placeholder_id` in an expanded prompt, in order."""
    runs: list[int] = []
    previous: int | None = None
    for token in prompt_token_ids:
        if token == placeholder_id:
            if previous != placeholder_id:
                runs.append(0)
            runs[-1] += 1
        previous = token
    return runs


def media_fields(family: Family, modality: Modality) -> MediaFields:
    """Return the fields of a modality.

    Raises:
        ContractError: the family cannot be served with that modality.
    """
    fields = family.media.get(modality)
    if fields is None:
        raise ContractError(modality, family.name, f"this model takes: {', '.join(family.media)}")
    return fields


def _part(family: Family, info: ModelInfo, medium: Medium, form: DecodeForm) -> dict[str, Any]:
    fields = media_fields(family, medium.modality)
    zeros = _zeros(info, medium, fields).encode() if form is DecodeForm.ZERO_EMBEDDING else None
    payload: object = zeros
    if fields.grid is not None and medium.grid is not None:
        payload = _facts(fields, medium, tensors=zeros is not None)
        if zeros is not None:
            payload[fields.embeds] = zeros
    return {"type": fields.embeds, fields.embeds: payload, "uuid": medium.identity}


def _zeros(info: ModelInfo, medium: Medium, fields: MediaFields) -> ZeroEmbedding:
    shape = (medium.tokens, info.geometry.embedding_width)
    if medium.grid is None or fields.grid is None:
        return ZeroEmbedding.rows(embeddings_shape=shape, tokens=medium.tokens, dtype=info.embedding_dtype)
    return ZeroEmbedding.create(
        image_grid_thw=medium.grid,
        embeddings_shape=shape,
        dtype=info.embedding_dtype,
        merge_size=info.geometry.merge_size or 0,
        field=fields.grid,
    )


def _facts(fields: MediaFields, medium: Medium, *, tensors: bool) -> dict[str, object]:
    grid = list(medium.grid or ())
    facts: dict[str, object] = {
        str(fields.grid): TensorValues.create("int64", grid).encode() if tensors else grid
    }
    if fields.timing is not None and medium.timing is not None:
        values = list(medium.timing)
        as_tensor = fields.timing.as_tensor
        facts[fields.timing.name] = TensorValues.create("float32", values).encode() if as_tensor else values
    return facts


def _timing(fields: MediaFields, metadata: Mapping[str, Any]) -> tuple[float, ...] | None:
    if fields.timing is None:
        return None
    name = fields.timing.name
    values = metadata.get(name)
    if not isinstance(values, list | tuple) or not values:
        raise TimingError(name, values, "the encode stage must report the video's timing")
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        raise TimingError(name, values, "give numbers, in seconds")
    return tuple(float(v) for v in values)
