"""Training samples for the tiny model: conversations about scenes, as the arrays that the model takes.

Pictures and positions are prepared here with numpy because the processors of transformers cost more than the
model itself; `check` compares the two.
"""

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tokenizer import IMAGE, TURN_END, TURN_START, VISION_END, VISION_START
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2VLImageProcessor
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from mmdisagg_cli import scenes

PATCH = 14
MERGED = 2 * PATCH
MIN_PIXELS, MAX_PIXELS = 56 * 56, 448 * 448
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)

TOKENS_PER_BATCH, POOL = 3000, 192

Grid: TypeAlias = tuple[int, int, int]
"""Frames (always 1), rows and columns of a picture, in patches: one row of `image_grid_thw`."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation, ready for the model.

    `ids`: int64 [tokens]; `positions`: int64 [3, tokens], M-RoPE; `answers`: bool [tokens], true where the
    token belongs to an answer; `patches`: float32 [patches, 1176]; `grids`: one per picture; `seen`: int64
    [merged patches, 2], the colour and shape that each merged patch shows (0 for none).
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    answers: NDArray[np.bool_]
    patches: NDArray[np.float32]
    grids: list[Grid]
    seen: NDArray[np.int64]


def patches(picture: Image.Image) -> tuple[NDArray[np.float32], Grid]:
    """What `Qwen2VLImageProcessor` makes of an RGB picture, without its overhead.

    Returns float32 [patches, 3 * 2 * 14 * 14], the four patches of a merged one in a row, and the grid.
    """
    height, width = smart_resize(picture.height, picture.width, MERGED, MIN_PIXELS, MAX_PIXELS)
    if (width, height) != picture.size:
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    pixels = (np.asarray(picture, np.float32) / 255 - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    rows, columns = height // PATCH, width // PATCH
    split = pixels.reshape(rows // 2, 2, PATCH, columns // 2, 2, PATCH, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    twice = np.repeat(split.reshape(-1, 3, 1, PATCH, PATCH), 2, axis=2)
    return twice.reshape(rows * columns, -1).astype(np.float32), (1, rows, columns)


def seen(scene: scenes.Scene, grid: Grid) -> NDArray[np.int64]:
    """The colour and shape (from 1; 0 is background) of each merged patch: int64 [merged patches, 2]."""
    rows, columns = grid[1] // 2, grid[2] // 2
    labels = np.zeros((rows, columns, 2), np.int64)
    most = np.full((rows, columns), 0.12)
    for thing in scene.things:
        across = _overlap(thing.box[0], thing.box[2], scene.picture.width, columns)
        down = _overlap(thing.box[1], thing.box[3], scene.picture.height, rows)
        covered = down[:, None] * across[None, :]
        labels[covered > most] = [
            1 + list(scenes.COLOURS).index(thing.colour),
            1 + scenes.SHAPES.index(thing.shape),
        ]
        most = np.maximum(most, covered)
    return labels.reshape(-1, 2)


def _overlap(start: float, end: float, length: int, cells: int) -> NDArray[np.float64]:
    edges = np.arange(cells + 1) * length / cells
    shared: NDArray[np.float64] = np.minimum(end, edges[1:]) - np.maximum(start, edges[:-1])
    return shared.clip(0) * cells / length


def mrope_positions(ids: NDArray[np.int64], image_id: int, grids: list[Grid]) -> NDArray[np.int64]:
    """Qwen2.5-VL's temporal, row and column position of each token: int64 [3, tokens]."""
    pieces: list[NDArray[np.int64]] = []
    at, position = 0, 0
    for _, patch_rows, patch_columns in grids:
        rows, columns = patch_rows // 2, patch_columns // 2
        start = at + int(np.argmax(ids[at:] == image_id))
        pieces.append(np.tile(np.arange(position, position + start - at), (3, 1)))
        position += start - at
        row, column = np.divmod(np.arange(rows * columns), columns)
        pieces.append(position + np.stack([np.zeros_like(row), row, column]))
        position += max(rows, columns)
        at = start + rows * columns
    pieces.append(np.tile(np.arange(position, position + len(ids) - at), (3, 1)))
    return np.concatenate(pieces, axis=1)


def conversation(rng: random.Random, progress: float) -> tuple[tuple[scenes.Scene, ...], list[str]]:
    """Draw a sample as hard as `progress` (0 to 1) asks: its scenes and its turns (prompt, answer, ...)."""
    question = _question(rng, progress)
    user = "".join(
        part if isinstance(part, str) else VISION_START + IMAGE + VISION_END for part in question.parts
    )
    turns = [f"{_system(rng, progress)}{_user(user)}", question.answer + TURN_END]
    others = [index for index in range(len(question.scenes)) if index != question.asked]
    rng.shuffle(others)
    if rng.random() < 0.5:
        for index in others:
            asking = scenes.ask(rng, len(question.scenes), index)
            turns += ["\n" + _user(asking), question.scenes[index].answer + TURN_END]
    return question.scenes, turns


def _question(rng: random.Random, progress: float) -> scenes.Question:
    if progress < 0.05:
        only = scenes.scene(rng, things=1)
        return scenes.Question((only.picture, scenes.ask(rng, 1, 0)), (only,), 0)
    pictures = 1 if progress < 0.2 else rng.choices((1, 2, 3), (45, 45, 10))[0]
    with_filler = 0.0 if progress < 0.35 else 0.15 if progress < 0.5 else 0.45
    return scenes.question(rng, pictures, rng.randint(1, 40) if rng.random() < with_filler else 0)


def _user(text: str) -> str:
    return f"{TURN_START}user\n{text}{TURN_END}\n{TURN_START}assistant\n"


def _system(rng: random.Random, progress: float) -> str:
    if progress < 0.35 or rng.random() < 0.85:
        return ""
    words = [
        "".join(rng.choices(string.ascii_letters + string.digits, k=rng.randint(1, 6))) for _ in range(10)
    ]
    text = rng.choice(
        ["You are a helpful assistant.", scenes.filler(rng, rng.randint(1, 20)), " ".join(words)]
    )
    return f"{TURN_START}system\n{text}{TURN_END}\n"


def encode(tokenizer: PreTrainedTokenizerFast, shown: tuple[scenes.Scene, ...], turns: list[str]) -> Sample:
    """Tokenize a conversation and give every picture its placeholder tokens."""
    prepared = [patches(scene.picture) for scene in shown]
    grids = [grid for _, grid in prepared]
    image_id = tokenizer.convert_tokens_to_ids(IMAGE)
    repeats = iter([rows * columns // 4 for _, rows, columns in grids])
    ids: list[int] = []
    answers: list[bool] = []
    for index, turn in enumerate(turns):
        for token in tokenizer.encode(turn, add_special_tokens=False):
            times = next(repeats) if token == image_id else 1
            ids += [token] * times
            answers += [index % 2 == 1] * times
    array = np.array(ids, np.int64)
    return Sample(
        array,
        mrope_positions(array, image_id, grids),
        np.array(answers),
        np.concatenate([values for values, _ in prepared]),
        grids,
        np.concatenate([seen(scene, grid) for scene, grid in zip(shown, grids, strict=True)]),
    )


def batches(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random, progress: float
) -> Iterator[list[Sample]]:
    """Cut a pool of samples, sorted by length, into batches of at most `TOKENS_PER_BATCH` padded tokens."""
    pool = [encode(tokenizer, *conversation(rng, progress)) for _ in range(POOL)]
    pool.sort(key=lambda sample: len(sample.ids))
    cut: list[list[Sample]] = [[]]
    for sample in pool:
        if (len(cut[-1]) + 1) * len(sample.ids) > TOKENS_PER_BATCH:
            cut.append([])
        cut[-1].append(sample)
    rng.shuffle(cut)
    yield from cut


def check(tokenizer: PreTrainedTokenizerFast, config: Qwen2_5_VLConfig) -> None:
    """Compare patches, positions and chat format with what transformers makes of the same conversation.

    Resized pictures may differ by a few grey levels: transformers resizes with torch, we with Pillow.

    Raises:
        AssertionError: they differ.
    """
    processor = Qwen2VLImageProcessor(size={"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS})
    rope = Qwen2_5_VLModel(config).get_rope_index
    rng = random.Random(7)
    for _ in range(20):
        question = scenes.question(rng, rng.randint(1, 3), rng.randint(0, 9))
        user = "".join(
            part if isinstance(part, str) else VISION_START + IMAGE + VISION_END for part in question.parts
        )
        messages = [{"role": "user", "content": question.content()}]
        if tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) != _user(user):
            raise AssertionError("the chat template differs from the training format")
        sample = encode(tokenizer, question.scenes, [_user(user), question.answer + TURN_END])
        theirs = processor(images=list(question.pictures), return_tensors="pt")
        if theirs["image_grid_thw"].tolist() != [list(grid) for grid in sample.grids]:
            raise AssertionError("the picture grid differs from transformers'")
        np.testing.assert_allclose(sample.patches, theirs["pixel_values"].numpy(), atol=0.1)
        ids = torch.from_numpy(sample.ids)[None]
        positions, _ = rope(ids, (ids == config.image_token_id).int(), theirs["image_grid_thw"])
        np.testing.assert_array_equal(sample.positions, positions[:, 0].numpy())
