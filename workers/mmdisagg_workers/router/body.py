"""Typed bodies of the OpenAI API: what a client may send, and nothing else.

Every field that no engine may see is absent here, so reading a body is the allow-list: an unknown field
is an error that names it. Absent fields stay `UNSET` and are never filled with defaults, since an
engine's default is part of the answer. Names and ranges are those of the OpenAI API and of vLLM 0.32.0's
`ChatCompletionRequest` and `CompletionRequest`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Salt: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024)]

T = TypeVar("T")


class TextPart(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A piece of text."""

    text: str


class RefusalPart(Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    """An assistant's refusal, sent back as history."""

    refusal: str


class ImageUrl(Struct, forbid_unknown_fields=True):
    """Where a picture is; `detail` is accepted and has no meaning for the models served here."""

    url: str
    detail: str | None = None


class ImagePart(Struct, tag_field="type", tag="image_url", forbid_unknown_fields=True):
    """A picture."""

    image_url: ImageUrl


class VideoUrl(Struct, forbid_unknown_fields=True):
    """Where a video is."""

    url: str


class VideoPart(Struct, tag_field="type", tag="video_url", forbid_unknown_fields=True):
    """A video."""

    video_url: VideoUrl


Part: TypeAlias = TextPart | RefusalPart | ImagePart | VideoPart


class FunctionCall(Struct, forbid_unknown_fields=True):
    """The call of one function; `arguments` is JSON in a string."""

    name: str
    arguments: str


class ToolCall(Struct, forbid_unknown_fields=True):
    """A tool call of an earlier assistant message."""

    function: FunctionCall
    id: str | UnsetType = UNSET
    type: Literal["function"] = "function"


class Message(Struct, forbid_unknown_fields=True):
    """One message of the conversation.

    `audio`, `function_call` and `annotations` are null in every answer of vLLM, and clients send answers
    back as history: only null is accepted, and dropped.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | UnsetType | None = UNSET
    name: str | UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType | None = UNSET
    tool_call_id: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    audio: UnsetType | None = UNSET
    function_call: UnsetType | None = UNSET
    annotations: UnsetType | None = UNSET


class FunctionDefinition(Struct, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: str
    description: str | UnsetType | None = UNSET
    parameters: dict[str, Any] | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET


class Tool(Struct, forbid_unknown_fields=True):
    """A tool that the model may call."""

    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(Struct, forbid_unknown_fields=True):
    """The name of a function."""

    name: str


class NamedTool(Struct, forbid_unknown_fields=True):
    """The one tool that the model must call."""

    function: NamedFunction
    type: Literal["function"] = "function"


class StreamOptions(Struct, forbid_unknown_fields=True):
    """What a stream carries besides text."""

    include_usage: bool | UnsetType | None = UNSET
    continuous_usage_stats: bool | UnsetType | None = UNSET
    include_obfuscation: bool | UnsetType | None = UNSET


class Sampling(Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields that chats and completions share; they concern the stage that generates."""

    model: str
    frequency_penalty: Penalty | UnsetType | None = UNSET
    logit_bias: dict[str, float] | UnsetType | None = UNSET
    max_tokens: Positive | UnsetType | None = UNSET
    n: Positive | UnsetType | None = UNSET
    presence_penalty: Penalty | UnsetType | None = UNSET
    response_format: dict[str, Any] | UnsetType | None = UNSET
    seed: Int64 | UnsetType | None = UNSET
    stop: str | list[str] | UnsetType | None = UNSET
    stream: bool | UnsetType | None = UNSET
    stream_options: StreamOptions | UnsetType | None = UNSET
    temperature: Annotated[float, Meta(ge=0)] | UnsetType | None = UNSET
    top_p: Annotated[float, Meta(gt=0, le=1)] | UnsetType | None = UNSET
    user: str | UnsetType | None = UNSET

    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | UnsetType | None = UNSET
    min_p: Fraction | UnsetType | None = UNSET
    repetition_penalty: Annotated[float, Meta(gt=0)] | UnsetType | None = UNSET
    stop_token_ids: list[Natural] | UnsetType | None = UNSET
    include_stop_str_in_output: bool | UnsetType = UNSET
    ignore_eos: bool | UnsetType = UNSET
    min_tokens: Natural | UnsetType = UNSET
    skip_special_tokens: bool | UnsetType = UNSET
    spaces_between_special_tokens: bool | UnsetType = UNSET
    allowed_token_ids: list[Natural] | UnsetType | None = UNSET
    bad_words: list[str] | UnsetType = UNSET
    logprob_token_ids: list[Natural] | UnsetType | None = UNSET
    repetition_detection: dict[str, Any] | UnsetType | None = UNSET
    structured_outputs: dict[str, Any] | UnsetType | None = UNSET
    thinking_token_budget: Int64 | UnsetType | None = UNSET
    return_tokens_as_token_ids: bool | UnsetType | None = UNSET
    return_token_ids: bool | UnsetType | None = UNSET
    stream_interval: Positive | UnsetType | None = UNSET

    add_special_tokens: bool | UnsetType = UNSET
    cache_salt: Salt | UnsetType | None = UNSET

    metadata: dict[str, Any] | UnsetType | None = UNSET
    prompt_cache_key: str | UnsetType | None = UNSET
    safety_identifier: str | UnsetType | None = UNSET
    service_tier: str | UnsetType | None = UNSET
    store: bool | UnsetType | None = UNSET

    @property
    def streams(self) -> bool:
        """Whether the client asked for server-sent events."""
        return bool(self.stream)

    @property
    def wants_token_ids(self) -> bool:
        """Whether the client asked to see token ids."""
        return bool(self.return_token_ids)


class ChatBody(Sampling, forbid_unknown_fields=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    logprobs: bool | UnsetType | None = UNSET
    top_logprobs: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | UnsetType | None = UNSET
    max_completion_tokens: Positive | UnsetType | None = UNSET
    tools: list[Tool] | UnsetType | None = UNSET
    tool_choice: Literal["none", "auto", "required"] | NamedTool | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    reasoning_effort: (
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | UnsetType | None
    ) = UNSET
    include_reasoning: bool | UnsetType = UNSET
    add_generation_prompt: bool | UnsetType = UNSET
    continue_final_message: bool | UnsetType = UNSET
    documents: list[dict[str, str]] | UnsetType | None = UNSET
    chat_template_kwargs: dict[str, Any] | UnsetType | None = UNSET
    mm_processor_kwargs: dict[str, Any] | UnsetType | None = UNSET
    media_io_kwargs: dict[str, dict[str, Any]] | UnsetType | None = UNSET
    modalities: list[Literal["text"]] | UnsetType | None = UNSET


class CompletionBody(Sampling, forbid_unknown_fields=True, kw_only=True):
    """Body of `POST /v1/completions`; text only."""

    prompt: str | list[str]
    logprobs: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | UnsetType | None = UNSET


Body: TypeAlias = ChatBody | CompletionBody

SAMPLING_FIELDS: Final = (
    "frequency_penalty",
    "logit_bias",
    "max_tokens",
    "n",
    "presence_penalty",
    "response_format",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "user",
    "top_k",
    "min_p",
    "repetition_penalty",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "repetition_detection",
    "structured_outputs",
    "stream_interval",
)
"""Fields of the generating stage that mean the same in a chat and in a completion."""

GENERATION_FIELDS: Final = (
    *SAMPLING_FIELDS,
    "logprob_token_ids",
    "thinking_token_budget",
    "return_tokens_as_token_ids",
)
"""Fields of the generating stage that both APIs have."""

CHAT_PROMPT_FIELDS: Final = (
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "documents",
    "chat_template_kwargs",
    "reasoning_effort",
)
"""Fields that shape a chat's prompt: every stage that renders the prompt gets them, besides `messages`."""

CHAT_GENERATION_FIELDS: Final = (
    *GENERATION_FIELDS,
    "logprobs",
    "top_logprobs",
    "max_completion_tokens",
    "tool_choice",
    "parallel_tool_calls",
    "include_reasoning",
)
"""Fields of a chat's generating stage."""

CHAT_MEDIA_FIELDS: Final = ("mm_processor_kwargs", "media_io_kwargs")
"""Fields of the stage that turns pixels into embeddings."""

COMPLETION_PROMPT_FIELDS: Final = ("add_special_tokens",)
COMPLETION_GENERATION_FIELDS: Final = (*GENERATION_FIELDS, "logprobs")

MESSAGE_FIELDS: Final = ("name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "refusal")
"""Fields of a message that travel as they came, besides `role` and `content`."""


def present(struct: Struct, names: tuple[str, ...]) -> dict[str, Any]:
    """Return those of the fields `names` that the client sent, null included."""
    return {name: value for name in names if (value := getattr(struct, name)) is not UNSET}


def known(value: T | UnsetType | None) -> T | None:
    """Return a field's value; absent counts as null."""
    return None if value is UNSET else value


def parts(message: Message) -> Iterator[Part]:
    """Yield the content parts of a message; plain text counts as one part."""
    if isinstance(message.content, str):
        yield TextPart(message.content)
    elif message.content:
        yield from message.content


_chat = msgspec.json.Decoder(ChatBody)
_completion = msgspec.json.Decoder(CompletionBody)


def read_chat(data: bytes) -> ChatBody:
    """Read the body of a chat.

    Raises:
        msgspec.DecodeError: no JSON, or not a body of this API.
        RecursionError: nested too deep.
    """
    return _chat.decode(data)


def read_completion(data: bytes) -> CompletionBody:
    """Read the body of a completion.

    Raises:
        msgspec.DecodeError: no JSON, or not a body of this API.
        RecursionError: nested too deep.
    """
    return _completion.decode(data)
