"""The requests that the router sends, one per stage: pure functions of the client's body and the media.

Each body is built from nothing: a field reaches an engine only because it is named here or in `body`.
Prefill gets what shapes the prompt and no more: its one token is thrown away, so nothing that concerns
generating may disturb it. Decode gets the client's own fields as sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mmdisagg_workers.contract import (
    DecodeForm,
    Family,
    Medium,
    ModelInfo,
    Role,
    cache_salt,
    decode_part,
    prefill_part,
)

from .body import (
    CHAT_GENERATION_FIELDS,
    CHAT_MEDIA_FIELDS,
    CHAT_PROMPT_FIELDS,
    COMPLETION_GENERATION_FIELDS,
    COMPLETION_PROMPT_FIELDS,
    MESSAGE_FIELDS,
    SAMPLING_FIELDS,
    ChatBody,
    CompletionBody,
    ImagePart,
    Message,
    VideoPart,
    known,
    present,
)
from .validation import ClientMedium
from .validation import encoded as encoded_json

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETION_PATH: Final = "/v1/completions"

ONE_TOKEN: Final[Mapping[str, Any]] = {"max_tokens": 1, "stream": False}
SEND_KV: Final[Mapping[str, Any]] = {"do_remote_decode": True, "do_remote_prefill": False}
"""Asks prefill to keep the KV blocks and to say where they are."""

JsonObject: TypeAlias = dict[str, Any]
Transfer: TypeAlias = Mapping[str, Any]
"""Opaque parameters of a handoff, passed from one engine to the next as they came."""

_CHAT_ONLY_FIELDS: Final = (
    "tools",
    "logprobs",
    "top_logprobs",
    "logprob_token_ids",
    "thinking_token_budget",
    "reasoning_effort",
    "return_tokens_as_token_ids",
)


@dataclass(frozen=True)
class Leg:
    """One request to one engine.

    Attributes:
        role: whose engine gets it.
        path: path of the API.
        body: JSON.
    """

    role: Role
    path: str
    body: bytes


@dataclass(frozen=True)
class Model:
    """What the legs need to know of the model.

    Attributes:
        family: decode contract.
        info: shape facts.
        form: how decode is told about media.
    """

    family: Family
    info: ModelInfo
    form: DecodeForm


@dataclass(frozen=True)
class EncodedMedium:
    """What encode said about one medium.

    Attributes:
        medium: what the later stages need to know.
        entry: its entry of `ec_transfer_params`.
    """

    medium: Medium
    entry: Transfer


@dataclass(frozen=True)
class EncodedMedia:
    """The media of one request after encode, in the client's order.

    Attributes:
        media: one entry per part; a picture that occurs twice is named twice.
        transfer: `ec_transfer_params` for the engine that loads the embeddings.
    """

    media: tuple[Medium, ...] = ()
    transfer: Transfer | None = None

    @classmethod
    def gathered(cls, encoded: Sequence[EncodedMedium]) -> EncodedMedia:
        """Put the media of one request together, in order."""
        transfer: JsonObject = {}
        for index, one in enumerate(encoded):
            earlier = transfer.get(one.medium.identity, {}).get("item_indices", [])
            transfer[one.medium.identity] = {**one.entry, "item_indices": [*earlier, index]}
        return cls(tuple(one.medium for one in encoded), transfer or None)

    @property
    def identities(self) -> list[str]:
        """The media identities in order."""
        return [medium.identity for medium in self.media]


def encode_leg(body: ChatBody, medium: ClientMedium) -> Leg:
    """Build the leg that encodes one medium; processor arguments go here and nowhere else."""
    fields: JsonObject = {
        "model": body.model,
        "messages": [{"role": "user", "content": [raw_part(medium)]}],
        "return_token_ids": True,
        **ONE_TOKEN,
        **present(body, CHAT_MEDIA_FIELDS),
    }
    return _leg(Role.ENCODE, CHAT_PATH, fields)


def prefill_leg(body: ChatBody, model: Model, encoded: EncodedMedia) -> Leg:
    """Build prefill's leg where encode is a role of its own: metadata and embeddings by reference."""
    fields = _prefill_fields(body)
    fields["messages"] = _messages(body, _prefill_parts(model, encoded))
    if encoded.transfer:
        fields["ec_transfer_params"] = encoded.transfer
    return _leg(Role.PREFILL, CHAT_PATH, fields)


def prefill_raw_leg(body: ChatBody, media: Sequence[ClientMedium]) -> Leg:
    """Build prefill's leg where prefill encodes: raw media, processor arguments included."""
    fields = _prefill_fields(body)
    fields["messages"] = _messages(body, [raw_part(medium) for medium in media])
    if media:
        fields |= present(body, CHAT_MEDIA_FIELDS)
    return _leg(Role.PREFILL, CHAT_PATH, fields)


def decode_leg(body: ChatBody, model: Model, encoded: EncodedMedia, kv: Transfer) -> Leg:
    """Build decode's leg after prefill: the contract's part per medium, and where the KV blocks are."""
    spelled = [decode_part(model.family, model.info, medium, media_form(model)) for medium in encoded.media]
    fields = _chat_fields(body, _messages(body, spelled))
    fields |= {"kv_transfer_params": kv, "return_token_ids": True}
    return _leg(Role.DECODE, CHAT_PATH, fields)


def decode_expanded_leg(
    body: ChatBody, model: Model, encoded: EncodedMedia, kv: Transfer, prompt_token_ids: Sequence[int]
) -> Leg:
    """Build decode's leg from prefill's expanded prompt: no media, identities as cache salt."""
    fields: JsonObject = {"model": body.model, **present(body, SAMPLING_FIELDS)}
    fields |= {
        "prompt": prompt_token_ids,
        "max_tokens": _max_tokens(body, model, len(prompt_token_ids)),
        "cache_salt": cache_salt(encoded.identities, known(body.cache_salt)),
        "kv_transfer_params": kv,
        "return_token_ids": True,
    }
    return _leg(Role.DECODE, COMPLETION_PATH, fields)


def generate_leg(body: ChatBody, model: Model, encoded: EncodedMedia) -> Leg:
    """Build the leg of a decode role that prefills itself but does not encode."""
    fields = _chat_fields(body, _messages(body, _prefill_parts(model, encoded)))
    fields["return_token_ids"] = True
    if encoded.transfer:
        fields["ec_transfer_params"] = encoded.transfer
    return _leg(Role.DECODE, CHAT_PATH, fields)


def generate_raw_leg(body: ChatBody, media: Sequence[ClientMedium]) -> Leg:
    """Build the leg of a decode role that does everything."""
    fields = _chat_fields(body, _messages(body, [raw_part(medium) for medium in media]))
    fields |= present(body, ("return_token_ids", *(CHAT_MEDIA_FIELDS if media else ())))
    return _leg(Role.DECODE, CHAT_PATH, fields)


def completion_prefill_leg(body: CompletionBody) -> Leg:
    """Build prefill's leg of a text completion."""
    fields: JsonObject = {"model": body.model, "prompt": body.prompt, **ONE_TOKEN}
    fields |= present(body, COMPLETION_PROMPT_FIELDS) | _salt(body.cache_salt)
    fields |= {"kv_transfer_params": SEND_KV, "return_token_ids": True}
    return _leg(Role.PREFILL, COMPLETION_PATH, fields)


def completion_leg(body: CompletionBody, kv: Transfer | None = None) -> Leg:
    """Build decode's leg of a text completion; without `kv` decode prefills itself."""
    fields: JsonObject = {"model": body.model, "prompt": body.prompt}
    fields |= present(body, (*COMPLETION_PROMPT_FIELDS, *COMPLETION_GENERATION_FIELDS))
    fields |= _salt(body.cache_salt) | present(body, ("return_token_ids",))
    if kv is not None:
        fields |= {"kv_transfer_params": kv, "return_token_ids": True}
    return _leg(Role.DECODE, COMPLETION_PATH, fields)


def raw_part(medium: ClientMedium) -> JsonObject:
    """Spell a medium for the engine that fetches it."""
    kind = f"{medium.modality}_url"
    return {"type": kind, kind: {"url": medium.url}}


def uses_expanded_prompt(body: ChatBody, model: Model, encoded: EncodedMedia) -> bool:
    """Whether decode gets token ids: the form says so, and the chat needs nothing that only chats have."""
    if model.form is not DecodeForm.EXPANDED_PROMPT or not encoded.media:
        return False
    return not any(known(getattr(body, name)) for name in _CHAT_ONLY_FIELDS)


def media_form(model: Model) -> DecodeForm:
    """The form of media parts on decode; a chat that cannot use the expanded prompt carries zeros."""
    return DecodeForm.ZERO_EMBEDDING if model.form is DecodeForm.EXPANDED_PROMPT else model.form


def _leg(role: Role, path: str, fields: JsonObject) -> Leg:
    return Leg(role, path, encoded_json(fields))


def _prefill_fields(body: ChatBody) -> JsonObject:
    fields: JsonObject = {"model": body.model, **ONE_TOKEN, "max_completion_tokens": 1}
    fields |= present(body, CHAT_PROMPT_FIELDS) | _salt(body.cache_salt)
    if known(body.tools) and known(body.tool_choice) not in (None, "auto"):
        # A forced call constrains generating, which one discarded token cannot satisfy.
        fields["tool_choice"] = "none"
    elif isinstance(body.tool_choice, str):
        fields["tool_choice"] = body.tool_choice
    return fields | {"kv_transfer_params": SEND_KV, "return_token_ids": True}


def _chat_fields(body: ChatBody, messages: list[JsonObject]) -> JsonObject:
    fields: JsonObject = {"model": body.model, "messages": messages}
    return fields | present(body, (*CHAT_PROMPT_FIELDS, *CHAT_GENERATION_FIELDS)) | _salt(body.cache_salt)


def _prefill_parts(model: Model, encoded: EncodedMedia) -> list[JsonObject]:
    return [prefill_part(model.family, model.info, medium) for medium in encoded.media]


def _salt(client: object) -> JsonObject:
    return {"cache_salt": cache_salt((), client)} if isinstance(client, str) else {}


def _max_tokens(body: ChatBody, model: Model, prompt_tokens: int) -> int:
    # A completion without a maximum stops after 16 tokens, a chat fills the context.
    asked = known(body.max_completion_tokens) or known(body.max_tokens)
    return asked or max(1, model.info.limits.max_model_len - prompt_tokens)


def _messages(body: ChatBody, media: Sequence[JsonObject]) -> list[JsonObject]:
    waiting = iter(media)
    return [_message(message, waiting) for message in body.messages]


def _message(message: Message, media: Iterator[JsonObject]) -> JsonObject:
    fields: JsonObject = {"role": message.role}
    if isinstance(message.content, list):
        fields["content"] = [
            next(media) if isinstance(part, ImagePart | VideoPart) else part for part in message.content
        ]
    else:
        fields |= present(message, ("content",))
    # Clients send answers back as history, with every field that was null in them.
    return fields | {
        name: value for name, value in present(message, MESSAGE_FIELDS).items() if value is not None
    }
