"""The tokenizer and chat template that all tiny Qwen models share.

A byte-level BPE of at most 512 entries with Qwen's special tokens: every text can be encoded; words that are
not in the corpus take several tokens. The template speaks Qwen's ChatML with Hermes tool calls.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"
IMAGE = "<|image_pad|>"
VIDEO = "<|video_pad|>"

SPECIAL_TOKENS = [
    PAD,
    TURN_START,
    TURN_END,
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    VISION_START,
    VISION_END,
    "<|vision_pad|>",
    IMAGE,
    VIDEO,
]
"""Qwen2-VL's special tokens, in the order of its vocabulary."""

VOCABULARY = 512

# `tool` turns follow Hermes: the result goes back inside a user turn. OpenAI clients send `image_url` items,
# vLLM and transformers `image` items.
CHAT_TEMPLATE = """\
{%- macro render(content) -%}
{%- if content is string -%}{{- content -}}
{%- elif content -%}
{%- for item in content -%}
{%- if item is string -%}{{- item -}}
{%- elif item.type in ('image', 'image_url') or 'image' in item or 'image_url' in item -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif item.type in ('video', 'video_url') or 'video' in item -%}
{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- elif 'text' in item -%}{{- item.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set first_is_system = messages and messages[0].role == 'system' -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if first_is_system -%}{{- render(messages[0].content) + '\\n\\n' -}}{%- endif -%}
{{- '# Tools\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\\n</tools>\\nCall one with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if not (loop.first and first_is_system and tools) -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + render(message.content) + '\\n</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\\n' + render(message.content) -}}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function or call -%}
{{- '\\n<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
{{- function.arguments if function.arguments is string else function.arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def byte_level_bpe(corpus: Iterable[str], special_tokens: list[str]) -> Tokenizer:
    """Train a byte-level BPE of at most 512 entries on `corpus`; the result depends on nothing else."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special_tokens, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(corpus, trainer)
    return bpe


def qwen_tokenizer(corpus: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer with Qwen's special tokens and the chat template above."""
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(corpus, SPECIAL_TOKENS),
        eos_token=TURN_END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        additional_special_tokens=SPECIAL_TOKENS,
    )


def save_qwen_tokenizer(tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the tokenizer so that it loads as Qwen's class, which the Qwen processors ask for by name."""
    tokenizer.save_pretrained(out)
    path = out / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["tokenizer_class"] = "Qwen2TokenizerFast"
    path.write_text(json.dumps(settings, indent=1) + "\n")


def padded_vocabulary(tokenizer: PreTrainedTokenizerFast) -> int:
    """The number of embedding rows: the vocabulary rounded up to a multiple of 64."""
    return -(-len(tokenizer) // 64) * 64
