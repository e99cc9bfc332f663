"""What a worker of a given topology and role answers at all: pure rules over a request's body.

| topology | encode    | prefill         | decode          |
|----------|-----------|-----------------|-----------------|
| E/P/D    | raw media | embeds with EC  | embeds with KV  |
| E/PD     | raw media |                 | embeds with EC  |
| EP/D     |           | raw media       | embeds with KV  |
| PD       |           |                 | raw media       |

An aggregated worker takes raw media. "Raw" is a URL, "embeds" a part that describes an embedding; EC and KV
are the transfer parameters without which vLLM 0.32.0 would answer such a part with wrong text and HTTP 200,
or die of it. Everything is refused that is not known to be right: other paths, other kinds of parts, and
keys by which vLLM would read a part as something else than its `type` says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mmdisagg_workers.contract import (
    ContractError,
    Family,
    Geometry,
    Modality,
    Role,
    Topology,
    check_identity,
)

from .embeds_payload import check_payload
from .settings import MediaPolicy

CHAT: Final = "/v1/chat/completions"
COMPLETION: Final = "/v1/completions"
_TOKENIZERS: Final = frozenset({"/tokenize", "/detokenize"})

_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
_RAW_PARTS: Final[Mapping[str, Modality]] = {"image_url": "image", "video_url": "video"}
_EMBEDS_PARTS: Final[Mapping[str, Modality]] = {"image_embeds": "image", "video_embeds": "video"}
_MEDIA_KEYS: Final = frozenset(
    {*_RAW_PARTS, *_EMBEDS_PARTS, "image_pil", "input_image", "audio_url", "input_audio", "audio_embeds"}
    | {"prompt_embeds", "uuid"}
)
"""Keys by which vLLM recognises a medium in a part, whatever its `type` says."""
_PROMPT_FIELDS: Final = ("tools", "documents", "chat_template", "chat_template_kwargs")
"""Fields besides the messages that a chat template can put into the prompt."""
_PROCESSOR_FIELDS: Final = ("mm_processor_kwargs", "media_io_kwargs")
_REMOTE_STRINGS: Final = ("remote_engine_id", "remote_request_id", "remote_host")
_SIZES: Final = ("tp_size", "dcp_size", "pp_size", "remote_block_size", "remote_num_tokens")


@dataclass(frozen=True)
class Violation:
    """Why a request is refused.

    Attributes:
        message: what was wrong and what to do.
        param: the field at fault.
        status: HTTP status.
    """

    message: str
    param: str | None = None
    status: int = 400

    def body(self) -> dict[str, Any]:
        """The response body, in OpenAI's error shape."""
        kind = "authentication_error" if self.status == 401 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": "stage_guard"}
        return {"error": error}


@dataclass(frozen=True)
class Row:
    """What one role of one topology takes.

    Attributes:
        raw: media by URL.
        ec: embeds parts together with `ec_transfer_params`.
        kv: embeds parts together with the `kv_transfer_params` that prefill answered with.
        sends_kv: `kv_transfer_params` that ask this engine to keep its KV blocks for decode.
        text: requests without media.
    """

    raw: bool = False
    ec: bool = False
    kv: bool = False
    sends_kv: bool = False
    text: bool = True


_ENCODE: Final = Row(raw=True, text=False)
_WHOLE: Final = Row(raw=True)
ROWS: Final[Mapping[tuple[Topology, Role], Row]] = {
    (Topology.E_P_D, Role.ENCODE): _ENCODE,
    (Topology.E_P_D, Role.PREFILL): Row(ec=True, sends_kv=True),
    (Topology.E_P_D, Role.DECODE): Row(kv=True),
    (Topology.E_PD, Role.ENCODE): _ENCODE,
    (Topology.E_PD, Role.DECODE): Row(ec=True),
    (Topology.EP_D, Role.PREFILL): Row(raw=True, sends_kv=True),
    (Topology.EP_D, Role.DECODE): Row(kv=True),
    (Topology.PD, Role.DECODE): _WHOLE,
    **{(topology, Role.AGGREGATED): _WHOLE for topology in Topology},
}
"""The table of the module's docstring."""


class _Refused(Exception):
    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        self.violation = Violation(message, param, status)


@dataclass(frozen=True)
class StageRules:
    """The rules for one worker.

    Attributes:
        row: what its role takes.
        family: decode contract of its model.
        geometry: shape facts of its model.
        media: how many media a request may carry.
        max_model_len: tokens per prompt, or None when the engine has not told yet.
    """

    row: Row
    family: Family
    geometry: Geometry
    media: MediaPolicy
    max_model_len: int | None = None

    def violation(self, path: str, body: object) -> Violation | None:
        """Judge a POST; `body` is parsed JSON of any shape, and no shape makes this raise."""
        try:
            self._judge(path, body)
        except _Refused as refused:
            return refused.violation
        except ContractError as error:
            return Violation(str(error), error.field)
        return None

    def _judge(self, path: str, body: object) -> None:
        if path in _TOKENIZERS:
            self._judge_tokenizing(body)
            return
        if path not in (CHAT, COMPLETION) or (path == COMPLETION and not self.row.text):
            raise _Refused(f"this worker does not serve {path}", status=404)
        if not isinstance(body, dict):
            raise _Refused("the body must be a JSON object")
        self._judge_fields(body)
        if path == CHAT:
            self._judge_chat(body)
        else:
            self._judge_completion(body)

    def _judge_tokenizing(self, body: object) -> None:
        """Text is harmless; media would be fetched and processed without any of the rules for chats."""
        if isinstance(body, dict) and body.get("messages") is not None:
            tokenizer = replace(self, row=Row())
            tokenizer._judge_fields(body)
            tokenizer._judge_chat(body)

    def _judge_fields(self, body: dict[str, Any]) -> None:
        if body.get("vllm_xargs") is not None:
            # vLLM merges them into what the scheduler reads, over kv_transfer_params that were judged here.
            raise _Refused("vllm_xargs are not served", "vllm_xargs")
        if body.get("prompt_embeds") is not None:
            raise _Refused("prompt_embeds are not served", "prompt_embeds")
        for name in _PROCESSOR_FIELDS:
            if body.get(name) is not None and not self.row.raw:
                raise _Refused(f"{name} belong to the stage that sees the pixels", name)
        self._judge_ec(body.get("ec_transfer_params"))
        self._judge_kv(body.get("kv_transfer_params"))

    def _judge_ec(self, ec: object) -> None:
        if ec is None:
            return
        if not self.row.ec:
            raise _Refused("this worker loads no embeddings", "ec_transfer_params")
        if not isinstance(ec, dict) or not all(isinstance(entry, dict) for entry in ec.values()):
            raise _Refused("ec_transfer_params must have an object for each identity", "ec_transfer_params")
        for identity in ec:
            check_identity(identity, "ec_transfer_params")

    def _judge_kv(self, kv: object) -> None:
        if kv is None:
            return
        if not isinstance(kv, dict) or not (self.row.kv or self.row.sends_kv):
            raise _Refused("this worker takes no such KV parameters", "kv_transfer_params")
        malformed = next((name for name in _SIZES if not _is_size(kv.get(name))), None)
        if malformed is not None:
            raise _Refused(f"{malformed} must be a whole number", "kv_transfer_params")
        if type(kv.get("remote_blocks_expiry_time")) not in (int, float, type(None)):
            raise _Refused("remote_blocks_expiry_time must be a number", "kv_transfer_params")
        if self.row.sends_kv:
            remote = [name for name in (*_REMOTE_STRINGS, "remote_block_ids") if kv.get(name) is not None]
            if kv.get("do_remote_decode") is not True or kv.get("do_remote_prefill") or remote:
                raise _Refused("prefill takes do_remote_decode: true alone", "kv_transfer_params")
        elif not _names_remote_blocks(kv):
            raise _Refused("decode takes what prefill answered with, unchanged", "kv_transfer_params")

    def _judge_chat(self, body: dict[str, Any]) -> None:
        messages = body.get("messages")
        if not isinstance(messages, list):
            raise _Refused("messages must be a list", "messages")
        parts = [part for message in messages for part in _parts(message)]
        media = [modality for part in parts if (modality := self._judge_part(part)) is not None]
        self._judge_counts(media)
        embeds = [part for part in parts if isinstance(part, dict) and part.get("type") in _EMBEDS_PARTS]
        if embeds:
            self._judge_transfer(body, [part["uuid"] for part in embeds])
        if not media and not self.row.text:
            raise _Refused("encode takes pictures or videos; the request has none", "messages")
        self._judge_texts([*_message_texts(messages), *(body.get(name) for name in _PROMPT_FIELDS)])

    def _judge_part(self, part: object) -> Modality | None:
        if isinstance(part, str):
            return None
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str):
            raise _Refused("every content part needs a type", "messages")
        allowed = {kind, "uuid"} if kind in _EMBEDS_PARTS else {kind}
        # For a part with a uuid, vLLM goes by which keys are present, even when they are null. Any uuid
        # counts, also an empty one: all pictures that carry it would share one identity.
        stray = sorted(
            key for key in (part.keys() & _MEDIA_KEYS) - allowed if key != "uuid" or part[key] is not None
        )
        if stray:
            raise _Refused(f"a part of type {kind!r} must not have {stray[0]!r}", stray[0])
        if kind in _RAW_PARTS:
            return self._judge_raw(kind, part.get(kind))
        if kind in _EMBEDS_PARTS:
            return self._judge_embeds(kind, part)
        if kind not in _TEXT_PARTS:
            raise _Refused(f"content parts of type {kind!r} are not served", "messages")
        return None

    def _judge_raw(self, kind: str, value: object) -> Modality:
        if not self.row.raw:
            raise _Refused("this worker takes no pictures or videos, only what encode made of them", kind)
        url = value.get("url") if isinstance(value, dict) else value
        if not isinstance(url, str) or not url:
            raise _Refused(f"{kind} must name a URL", kind)
        return self._served(_RAW_PARTS[kind])

    def _judge_embeds(self, kind: str, part: dict[str, Any]) -> Modality:
        if not (self.row.ec or self.row.kv):
            raise _Refused("this worker takes media by URL, not embeddings", kind)
        check_identity(part.get("uuid"))
        modality = self._served(_EMBEDS_PARTS[kind])
        check_payload(part.get(kind), self.family.media[modality], self.geometry, self.max_model_len)
        return modality

    def _served(self, modality: Modality) -> Modality:
        if modality not in self.family.media:
            raise _Refused(f"{self.family.name} models take no {modality}s here", "messages")
        return modality

    def _judge_counts(self, media: list[Modality]) -> None:
        limits: Mapping[Modality, int] = {"image": self.media.images, "video": self.media.videos}
        for modality, limit in limits.items():
            if media.count(modality) > limit:
                found = media.count(modality)
                raise _Refused(f"{found} {modality}s in one request; the limit is {limit}", "messages")

    def _judge_transfer(self, body: dict[str, Any], identities: list[str]) -> None:
        if self.row.kv:
            if body.get("kv_transfer_params") is None:
                raise _Refused("embeds parts need prefill's kv_transfer_params", "kv_transfer_params")
            return
        ec = body.get("ec_transfer_params")
        unnamed = [i for i in identities if not isinstance(ec, dict) or i not in ec]
        if unnamed:
            raise _Refused(f"ec_transfer_params must name {unnamed[0]}", "ec_transfer_params")

    def _judge_texts(self, values: list[Any]) -> None:
        literals = [placeholder.text for placeholder in self.geometry.placeholders.values()]
        for text in _strings(values):
            found = next((literal for literal in literals if literal in text), None)
            if found is not None:
                raise _Refused(f"the text contains the placeholder token {found}; remove it", "messages")

    def _judge_completion(self, body: dict[str, Any]) -> None:
        prompt = body.get("prompt")
        self._judge_texts([prompt, body.get("suffix")])
        if not _is_prompt(prompt):
            # vLLM makes token ids of 12.0, true and, beside numbers, "12"; none of them would be judged here.
            raise _Refused("prompt must be text, texts, token ids or lists of token ids", "prompt")
        tokens = set(_integers(prompt))
        if not tokens & {placeholder.token_id for placeholder in self.geometry.placeholders.values()}:
            return
        if self.family.has_grid:
            raise _Refused("this model's media need a grid, which a token prompt cannot carry", "prompt")
        if not self.row.kv or body.get("kv_transfer_params") is None:
            raise _Refused(
                "a prompt with placeholders needs prefill's kv_transfer_params", "kv_transfer_params"
            )
        salt = body.get("cache_salt")
        if not isinstance(salt, str) or not salt:
            raise _Refused("a prompt with placeholders needs a cache_salt of its media", "cache_salt")
        if not isinstance(prompt, list) or not all(isinstance(token, int) for token in prompt):
            raise _Refused("a prompt with placeholders must be one list of token ids", "prompt")


def _parts(message: object) -> list[object]:
    if not isinstance(message, dict):
        raise _Refused("every message must be an object", "messages")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return []
    if not isinstance(content, list):
        raise _Refused("content must be text or a list of parts", "messages")
    return content


def _names_remote_blocks(kv: Mapping[str, Any]) -> bool:
    blocks, port = kv.get("remote_block_ids"), kv.get("remote_port")
    return (
        kv.get("do_remote_prefill") is True
        and not kv.get("do_remote_decode")
        and all(isinstance(kv.get(name), str) and kv[name] for name in _REMOTE_STRINGS)
        and type(port) is int
        and 0 < port < 65536
        and isinstance(blocks, list)
        and bool(blocks)
        and all(isinstance(group, list) and all(type(block) is int for block in group) for group in blocks)
    )


def _is_size(value: object) -> bool:
    return value is None or (type(value) is int and value >= 0)


def _is_prompt(prompt: object) -> bool:
    if prompt is None or isinstance(prompt, str):
        return True
    return isinstance(prompt, list) and (
        all(isinstance(item, str) for item in prompt)
        or _are_tokens(prompt)
        or all(_are_tokens(item) for item in prompt)
    )


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _message_texts(messages: list[Any]) -> Iterator[object]:
    """Everything of the messages that can become text of the prompt: all but the media parts."""
    for message in messages:
        yield {key: value for key, value in message.items() if key != "content"}
        yield from _parsed_arguments(message.get("tool_calls"))
        content = message.get("content")
        for part in content if isinstance(content, list) else [content]:
            if not isinstance(part, dict) or part.get("type") not in _MEDIA_KEYS:
                yield part


def _parsed_arguments(calls: object) -> Iterator[object]:
    """What vLLM makes of the arguments of tool calls: escapes in their JSON may spell a placeholder."""
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str):
            try:
                # The standard library's parser, as vLLM: orjson refuses NaN and lone surrogates.
                yield json.loads(arguments)
            except (ValueError, RecursionError):
                continue


def _strings(values: object) -> Iterator[str]:
    """Every text in a JSON value, keys included, without recursion."""
    stack = [values]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, dict):
            stack.extend([*value.keys(), *value.values()])


def _integers(value: object) -> Iterator[int]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, int):
            yield item
        elif isinstance(item, list):
            stack.extend(item)
