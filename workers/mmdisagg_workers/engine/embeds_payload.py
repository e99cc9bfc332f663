"""Whether the payload of an embeds part says everything that right positions need, and nothing absurd.

Each check has its reason in vLLM 0.32.0: a grid of zeros is answered with HTTP 500, a wrong width that is
really embedded kills the engine, a missing timing or a wrong row count gives wrong text with HTTP 200.
"""

from __future__ import annotations

from mmdisagg_workers.contract import (
    CountMismatchError,
    DescriptorError,
    Geometry,
    GridError,
    MediaFields,
    ShapeError,
    TensorValues,
    TimingError,
    ZeroEmbedding,
    decode_descriptor,
    single_grid,
    token_count,
)


def check_payload(
    payload: object, fields: MediaFields, geometry: Geometry, max_model_len: int | None = None
) -> None:
    """Check the payload of one part.

    Args:
        payload: what stands under `image_embeds` or `video_embeds`.
        fields: what the family needs for the modality.
        geometry: shape facts of the model.
        max_model_len: tokens per prompt; None when unknown.

    Raises:
        ContractError: a fact is missing, malformed, or contradicts another.
    """
    if fields.grid is None:
        tokens = _zero_rows(payload, fields.embeds, geometry)
    else:
        tokens = _described_tokens(payload, fields, fields.grid, geometry)
    if max_model_len is not None and tokens > max_model_len:
        raise ShapeError(fields.embeds, f"{tokens} tokens", f"the model takes {max_model_len} tokens in all")


def _described_tokens(payload: object, fields: MediaFields, grid_name: str, geometry: Geometry) -> int:
    known = {fields.embeds, grid_name} | ({fields.timing.name} if fields.timing else set())
    if not isinstance(payload, dict) or payload.keys() - known:
        raise GridError(fields.embeds, payload, f"give an object with {', '.join(sorted(known))} only")
    grid = single_grid(_flat(_numbers(payload.get(grid_name)), grid_name), grid_name)
    tokens = token_count([grid], geometry.merge_size or 0, grid_name)
    if fields.timing is not None:
        _check_timing(payload.get(fields.timing.name), fields.timing.name)
    if fields.embeds in payload and _zero_rows(payload[fields.embeds], fields.embeds, geometry) != tokens:
        remedy = f"{grid_name} has {tokens} placeholder tokens; give as many rows"
        raise CountMismatchError(fields.embeds, payload[fields.embeds], remedy)
    return tokens


def _zero_rows(text: object, name: str, geometry: Geometry) -> int:
    described = decode_descriptor(text)
    if not isinstance(described, ZeroEmbedding):
        raise DescriptorError(name, text, "describe a zero embedding")
    rows, width = described.shape
    if width != geometry.embedding_width:
        raise ShapeError(
            name, [rows, width], f"this model's embeddings have width {geometry.embedding_width}"
        )
    return rows


def _numbers(value: object) -> object:
    """The numbers of a value descriptor, or the JSON value as it is."""
    if not isinstance(value, str):
        return value
    described = decode_descriptor(value)
    return list(described.values) if isinstance(described, TensorValues) else None


def _flat(value: object, name: str) -> object:
    # vLLM takes metadata as one flat array per medium and refuses a nested one.
    if isinstance(value, list) and any(isinstance(item, list) for item in value):
        raise GridError(name, value, "give one flat list [time, height, width]")
    return value


def _check_timing(value: object, name: str) -> None:
    numbers = _numbers(value)
    if not isinstance(numbers, list) or not numbers or any(type(n) not in (int, float) for n in numbers):
        raise TimingError(name, value, "give the video's timing as the encode stage reported it")
