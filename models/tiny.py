"""Tiny models with random weights, one per family that mmdisagg serves: for tests, not for sense.

    python models/tiny.py qwen2-vl|qwen3-vl|llava OUT_DIR

A model takes seconds to build and is the same every time: fixed seed, float32. A folder that is complete is
left as it is. The weights are drawn wide enough that different pictures give different greedy answers.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tokenizer import (
    IMAGE,
    PAD,
    TURN_END,
    VIDEO,
    VISION_END,
    VISION_START,
    byte_level_bpe,
    padded_vocabulary,
    qwen_tokenizer,
    save_qwen_tokenizer,
)

CORPUS = [
    "You are a helpful assistant. Describe this image, picture or video please.",
    "system user assistant tool",
]
SPREAD = 0.15
WEIGHTS = "model.safetensors"

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

LLAVA_IMAGE = "<image>"
LLAVA_SPECIAL_TOKENS = ["<unk>", "<s>", "</s>", "<pad>", LLAVA_IMAGE]
LLAVA_SIDE = 56
LLAVA_CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- {'system': '', 'assistant': 'ASSISTANT: '}.get(message.role, 'USER: ') -}}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}
{%- for item in message.content -%}
{%- if item.type in ('image', 'image_url') -%}{{- '<image>\\n' -}}
{%- elif 'text' in item -%}{{- item.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- ' ' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}
"""

# transformers 5 saves shorter names than those under which LLaVA 1.5 was published, which vLLM 0.32 expects.
LLAVA_PUBLISHED_NAMES = (
    ("vision_tower.", "vision_tower.vision_model."),
    ("language_model.", "language_model.model."),
    ("multi_modal_projector.", "multi_modal_projector."),
)


def build(family: str, out: Path) -> Path:
    """Write the model of `family` (a key of `FAMILIES`) to `out`, unless it is complete there; returns `out`.

    The folder appears under its name only when it is whole.
    """
    if (out / WEIGHTS).is_file():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        whole = Path(scratch) / "model"
        whole.mkdir(mode=0o755)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            FAMILIES[family](whole)
        (whole / WEIGHTS).chmod(0o644)  # safetensors writes 0600; pods read as another user
        shutil.rmtree(out, ignore_errors=True)
        whole.rename(out)
    return out


def qwen2_vl(out: Path) -> None:
    """Qwen2-VL: two text and two vision layers, M-RoPE, patches of 14."""
    tokenizer = qwen_tokenizer(CORPUS)
    config = Qwen2VLConfig(
        text_config=_text_config(tokenizer)
        | {
            "num_hidden_layers": 2,
            "rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12], "rope_theta": 1e6},
        },
        vision_config={
            "depth": 2,
            "embed_dim": 64,
            "hidden_size": 128,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        **_placeholder_ids(tokenizer),
    )
    _save(Qwen2VLForConditionalGeneration(config), out)
    save_qwen_tokenizer(tokenizer, out)
    _save_qwen_processors(out, "Qwen2VL", {"patch_size": 14, "image_mean": CLIP_MEAN, "image_std": CLIP_STD})


def qwen3_vl(out: Path) -> None:
    """Qwen3-VL: four text and four vision layers, three of them feeding DeepStack; patches of 16."""
    tokenizer = qwen_tokenizer(CORPUS)
    config = Qwen3VLConfig(
        text_config=_text_config(tokenizer)
        | {
            "num_hidden_layers": 4,
            "head_dim": 64,
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [12, 10, 10],
                "mrope_interleaved": True,
                "rope_theta": 5e6,
            },
        },
        vision_config={
            "depth": 4,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "out_hidden_size": 128,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [0, 1, 2],
        },
        **_placeholder_ids(tokenizer),
    )
    _save(Qwen3VLForConditionalGeneration(config), out)
    save_qwen_tokenizer(tokenizer, out)
    _save_qwen_processors(out, "Qwen3VL", {"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3})


def llava(out: Path) -> None:
    """LLaVA 1.5: a CLIP encoder of three layers, a Llama of two; a picture is 56 x 56 pixels, 16 tokens."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(CORPUS, LLAVA_SPECIAL_TOKENS),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        chat_template=LLAVA_CHAT_TEMPLATE,
        extra_special_tokens={"image_token": LLAVA_IMAGE},
    )
    LlavaProcessor(
        image_processor=CLIPImageProcessor(
            size={"shortest_edge": LLAVA_SIDE}, crop_size={"height": LLAVA_SIDE, "width": LLAVA_SIDE}
        ),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=LLAVA_IMAGE,
        chat_template=LLAVA_CHAT_TEMPLATE,
    ).save_pretrained(out)
    config = LlavaConfig(
        text_config=LlamaConfig(
            vocab_size=padded_vocabulary(tokenizer),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=64,
            max_position_embeddings=4096,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        vision_config=CLIPVisionConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=2,
            image_size=LLAVA_SIDE,
            patch_size=14,
            projection_dim=64,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids(LLAVA_IMAGE),
        vision_feature_select_strategy="default",
        vision_feature_layer=-2,
        projector_hidden_act="gelu",
        tie_word_embeddings=False,
    )
    _save(LlavaForConditionalGeneration(config), out)
    weights = {published_llava_name(name): tensor for name, tensor in load_file(out / WEIGHTS).items()}
    save_file(weights, out / WEIGHTS, metadata={"format": "pt"})


FAMILIES: dict[str, Callable[[Path], None]] = {"qwen2-vl": qwen2_vl, "qwen3-vl": qwen3_vl, "llava": llava}
"""The families that can be built, and what builds each."""


def published_llava_name(name: str) -> str:
    """The name under which LLaVA 1.5 was published, for a weight's name as transformers 4 or 5 saves it."""
    if name.startswith("lm_head."):
        return f"language_model.{name}"
    bare = name.removeprefix("model.")
    for short, published in LLAVA_PUBLISHED_NAMES:
        if bare.startswith(short) and not bare.startswith((published, "language_model.lm_head.")):
            return published + bare.removeprefix(short)
    return bare


def _text_config(tokenizer: PreTrainedTokenizerFast) -> dict[str, object]:
    return {
        "vocab_size": padded_vocabulary(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.convert_tokens_to_ids(PAD),
        "eos_token_id": tokenizer.convert_tokens_to_ids(TURN_END),
        "pad_token_id": tokenizer.convert_tokens_to_ids(PAD),
    }


def _placeholder_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int | bool]:
    number = tokenizer.convert_tokens_to_ids
    return {
        "image_token_id": number(IMAGE),
        "video_token_id": number(VIDEO),
        "vision_start_token_id": number(VISION_START),
        "vision_end_token_id": number(VISION_END),
        "tie_word_embeddings": False,
    }


def _save(model: PreTrainedModel, out: Path) -> None:
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=SPREAD)
    model.to(torch.float32).save_pretrained(out)


def _save_qwen_processors(out: Path, family: str, settings: dict[str, object]) -> None:
    smallest = (4 * int(str(settings["patch_size"]))) ** 2
    shared = {
        "processor_class": f"{family}Processor",
        "size": {"shortest_edge": smallest, "longest_edge": 448 * 448},
        "temporal_patch_size": 2,
        "merge_size": 2,
        **settings,
    }
    picture = {"image_processor_type": "Qwen2VLImageProcessor", **shared}
    video = {"video_processor_type": f"{family}VideoProcessor", **shared}
    (out / "preprocessor_config.json").write_text(json.dumps(picture, indent=1) + "\n")
    (out / "video_preprocessor_config.json").write_text(json.dumps(video, indent=1) + "\n")


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(description="Build a tiny model with random weights.")
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    arguments = parser.parse_args()
    print(build(arguments.family, arguments.out))


if __name__ == "__main__":
    main()
