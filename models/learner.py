"""The tiny Qwen2.5-VL: its tokenizer, its configuration, and the form in which it is trained."""

import random

import numpy as np
import torch
from samples import PATCH, Sample
from tokenizer import IMAGE, PAD, TURN_END, VIDEO, VISION_END, VISION_START, padded_vocabulary, qwen_tokenizer
from torch import nn
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen

from mmdisagg_cli import scenes


def new_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that knows questions and answers; filler words stay in pieces."""
    rng = random.Random(1)
    corpus = ["You are a helpful assistant.", "system", "user", "assistant", "hello world", "tool"]
    for _ in range(600):
        question = scenes.question(rng, rng.randint(1, 3))
        corpus += [question.text, question.answer]
    return qwen_tokenizer(corpus)


def configuration(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLConfig:
    """1.5 M parameters; vLLM's CPU attention needs `head_dim` >= 32; each vision layer sees all of a picture.

    `rope_theta` is 1,000: the column frequencies, the lowest of the sixteen, still tell neighbours apart.
    """
    number = tokenizer.convert_tokens_to_ids
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": padded_vocabulary(tokenizer),
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1000.0},
            "tie_word_embeddings": False,
            "bos_token_id": number(PAD),
            "eos_token_id": number(TURN_END),
            "pad_token_id": number(PAD),
        },
        vision_config={
            "depth": 3,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_heads": 4,
            "out_hidden_size": 128,
            "patch_size": PATCH,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": [0, 1, 2],
        },
        image_token_id=number(IMAGE),
        video_token_id=number(VIDEO),
        vision_start_token_id=number(VISION_START),
        vision_end_token_id=number(VISION_END),
        tie_word_embeddings=False,
    )


class Learner(nn.Module):
    """The model and the two heads that name the colour and the shape that a merged patch shows."""

    def __init__(self, config: Qwen2_5_VLConfig) -> None:
        """Draw the weights: wider than the default, with which so small a model does not learn to look."""
        super().__init__()
        self.vlm = Qwen2_5_VLForConditionalGeneration(config)
        for name, parameter in self.vlm.named_parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.1 if "embed_tokens" in name else 0.05)
        width = config.vision_config.out_hidden_size
        self.colour = nn.Linear(width, 1 + len(scenes.COLOURS))
        self.shape = nn.Linear(width, 1 + len(scenes.SHAPES))
        self.image_id = config.image_token_id

    def forward(self, samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The logits of every answer token [answers, vocabulary], those tokens [answers], the patch loss [].

        An answer is all turns of the assistant, its `<|im_end|>` included.
        """
        length = max(len(sample.ids) for sample in samples)
        ids = torch.zeros(len(samples), length, dtype=torch.long)
        positions = torch.zeros(3, len(samples), length, dtype=torch.long)
        predicts = torch.zeros(len(samples), length, dtype=torch.bool)
        for row, sample in enumerate(samples):
            end = len(sample.ids)
            ids[row, :end] = torch.from_numpy(sample.ids)
            positions[:, row, :end] = torch.from_numpy(sample.positions)
            predicts[row, : end - 1] = torch.from_numpy(sample.answers[1:])
        pixels = torch.from_numpy(np.concatenate([sample.patches for sample in samples]))
        grids = torch.tensor([grid for sample in samples for grid in sample.grids])
        seen_by_encoder = self.vlm.model.visual(pixels, grid_thw=grids).pooler_output
        embedded = self.vlm.get_input_embeddings()(ids)
        embedded = embedded.masked_scatter((ids == self.image_id)[..., None], seen_by_encoder)
        # Padding is on the right, so causal attention alone keeps it out.
        hidden = self.vlm.model.language_model(
            inputs_embeds=embedded, position_ids=positions, attention_mask=None, use_cache=False
        ).last_hidden_state
        logits = self.vlm.lm_head(hidden[predicts])
        return logits, ids.roll(-1, dims=1)[predicts], self._patch_loss(seen_by_encoder, samples)

    def _patch_loss(self, merged: torch.Tensor, samples: list[Sample]) -> torch.Tensor:
        labels = torch.from_numpy(np.concatenate([sample.seen for sample in samples]))
        return functional.cross_entropy(self.colour(merged), labels[:, 0]) + functional.cross_entropy(
            self.shape(merged), labels[:, 1]
        )


def train_fast() -> None:
    """Make transformers' vision encoder quick on a CPU, for the rest of the process; results stay the same.

    One padded attention call replaces a Python loop over pictures, one matrix product the 3-D convolution.
    """
    qwen.Qwen2_5_VLVisionAttention.forward = _padded_attention
    qwen.Qwen2_5_VisionPatchEmbed.forward = _patch_product
    torch.set_flush_denormal(True)


def _patch_product(self: qwen.Qwen2_5_VisionPatchEmbed, hidden_states: torch.Tensor) -> torch.Tensor:
    return functional.linear(hidden_states, self.proj.weight.flatten(1))


def _padded_attention(
    self: qwen.Qwen2_5_VLVisionAttention,
    hidden_states: torch.Tensor,
    cu_seqlens: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    **_: object,
) -> torch.Tensor:
    count = hidden_states.shape[0]
    query, key, value = self.qkv(hidden_states).reshape(count, 3, self.num_heads, -1).unbind(1)
    query, key = qwen.apply_rotary_pos_emb_vision(query, key, *position_embeddings)
    lengths = cu_seqlens.diff()
    real = torch.arange(int(lengths.max()))[None] < lengths[:, None]

    def by_picture(values: torch.Tensor) -> torch.Tensor:
        padded = values.new_zeros(*real.shape, *values.shape[1:])
        padded[real] = values
        return padded.transpose(1, 2)

    mixed = functional.scaled_dot_product_attention(
        by_picture(query),
        by_picture(key),
        by_picture(value),
        attn_mask=real[:, None, None],
        scale=self.scaling,
    )
    return self.proj(mixed.transpose(1, 2)[real].reshape(count, -1))
