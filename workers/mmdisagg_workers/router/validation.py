"""The rules that a client's body must keep before any engine hears of it.

What the types of `body` cannot say stands here: limits of the deployment, schemes of media, and the
placeholder texts. A literal placeholder (`<|image_pad|>`) in a text would be taken for a picture's
position and shift all others, so it is refused wherever text reaches the prompt, also where two
adjacent pieces make one, and inside a tool call's JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from mmdisagg_workers.contract import TEXT_BYTES, Family, MediaLimits, Modality, Topology

from .body import (
    CHAT_MEDIA_FIELDS,
    Body,
    ChatBody,
    CompletionBody,
    ImagePart,
    Message,
    RefusalPart,
    TextPart,
    VideoPart,
    known,
    parts,
    read_chat,
    read_completion,
)
from .errors import InvalidRequestError, ModelNotFoundError, TooLargeError

SCHEMES: Final = ("data:", "http:", "https:")
MAX_PARTS: Final = 10_000
"""Messages and content parts per request, together: each costs far more memory and time than its bytes."""

_CLIENT_MAY_NOT: Final = {
    "uuid": "media identities are made by the engines",
    "kv_transfer_params": "KV blocks are addressed by the router",
    "ec_transfer_params": "embeddings are addressed by the router",
    "prompt_embeds": "embeddings are made by the engines",
    "priority": "all requests are equal",
}
_NOT_SERVED: Final = {
    "echo": "the prompt is not at hand where the answer is made",
    "prompt_logprobs": "the prompt is not computed where the answer is made",
    "use_beam_search": "beams cannot share the KV blocks of one prefill",
    "chat_template": "the deployment's own chat template is used",
    "vllm_xargs": "arguments of engine extensions are set by the deployment",
    "functions": "give `tools`",
    "function_call": "give `tool_choice`",
}
_DATA_PREFIX: Final = 256
_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<name>[^`]*)`")
_UNKNOWN_TYPE = re.compile(r"^Invalid value '(?P<name>[^']*)' - at `[^`]*\.type`$")
_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")


@dataclass(frozen=True)
class ClientMedium:
    """A picture or video as the client named it.

    Attributes:
        modality: `image` or `video`.
        url: a `data:`, `http:` or `https:` URL.
    """

    modality: Modality
    url: str


@dataclass(frozen=True)
class Rules:
    """What this deployment accepts.

    Attributes:
        model: the served model's name.
        topology: the deployment's topology.
        family: decode contract of the model.
        limits: media limits of the deployment.
    """

    model: str
    topology: Topology
    family: Family
    limits: MediaLimits


def parse_chat(data: bytes) -> ChatBody:
    """Read the body of a chat.

    Raises:
        InvalidRequestError: no JSON, an unknown field or part, a wrong type or range, too many parts.
        TooLargeError: too much besides the inline media.
    """
    try:
        body = read_chat(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _readable(error) from None
    _check_part_count(body)
    _check_text_size(len(data), chat_media(body) if len(data) > TEXT_BYTES else ())
    return body


def parse_completion(data: bytes) -> CompletionBody:
    """Read the body of a completion.

    Raises:
        InvalidRequestError: no JSON, an unknown field, a wrong type or range; token ids as prompt.
        TooLargeError: the body is larger than any text may be.
    """
    _check_text_size(len(data), ())
    try:
        return read_completion(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _readable(error) from None


def encoded(value: Any, order: Literal["deterministic", "sorted"] | None = None) -> bytes:
    """Return JSON of a value that holds fields of a client.

    Raises:
        InvalidRequestError: nested too deep; reading it needed less of the stack than writing it does.
    """
    try:
        return msgspec.json.encode(value, order=order)
    except RecursionError as error:
        raise _readable(error) from None


def checked(body: Body, rules: Rules) -> Sequence[ClientMedium]:
    """Check a body of either kind, and return its media in their order.

    Raises:
        ModelNotFoundError: another model's name.
        InvalidRequestError: any other rule is broken.
    """
    if isinstance(body, ChatBody):
        return check_chat(body, rules)
    check_completion(body, rules)
    return ()


def check_chat(body: ChatBody, rules: Rules) -> list[ClientMedium]:
    """Check a chat against the deployment's rules, and return its media in their order.

    Raises:
        ModelNotFoundError: another model's name.
        InvalidRequestError: any other rule is broken; the message names field and limit.
    """
    _check_common(body, rules)
    media = chat_media(body)
    _check_counts(media, rules)
    for medium in media:
        _check_medium(medium, rules.limits)
    _check_processor_arguments(body, rules.limits)
    _refuse_placeholders(_chat_texts(body), rules.family)
    return media


def check_completion(body: CompletionBody, rules: Rules) -> None:
    """Check a completion against the deployment's rules.

    Raises:
        ModelNotFoundError: another model's name.
        InvalidRequestError: any other rule is broken.
    """
    _check_common(body, rules)
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if len(prompts) != 1:
        raise InvalidRequestError(f"prompt: got {len(prompts)} prompts; send one per request", "prompt")
    _refuse_placeholders((("prompt", prompt) for prompt in prompts), rules.family)


def chat_media(body: ChatBody) -> list[ClientMedium]:
    """Return the media of a chat in the order in which the prompt will name them."""
    found: list[ClientMedium] = []
    for message in body.messages:
        for part in parts(message):
            if isinstance(part, ImagePart):
                found.append(ClientMedium("image", part.image_url.url))
            elif isinstance(part, VideoPart):
                found.append(ClientMedium("video", part.video_url.url))
    return found


def _check_part_count(body: ChatBody) -> None:
    # Plain text is no part of its own here: it costs nothing besides its message.
    contents = (message.content for message in body.messages)
    count = len(body.messages) + sum(len(content) for content in contents if isinstance(content, list))
    if count > MAX_PARTS:
        raise InvalidRequestError(
            f"messages: got {count} messages and parts; at most {MAX_PARTS} per request",
            "messages",
            "too_many_parts",
        )


def _check_text_size(size: int, media: Iterable[ClientMedium]) -> None:
    # The body as a whole may be as large as all media together: text must not use that room.
    text = size - sum(len(medium.url) for medium in media if medium.url[:5].lower() == "data:")
    if text > TEXT_BYTES:
        raise TooLargeError(f"The body has {text} bytes besides inline media; at most {TEXT_BYTES}.")


def _check_common(body: Body, rules: Rules) -> None:
    if body.model != rules.model:
        raise ModelNotFoundError(
            f"The model {body.model!r} does not exist; served: {rules.model!r}.", "model"
        )
    if known(body.stream_options) is not None and not body.streams:
        raise InvalidRequestError("stream_options: only with stream: true", "stream_options")
    if (known(body.n) or 1) > 1 and rules.topology.hands_over_kv:
        # vLLM gives all n sequences one set of KV parameters, and prefill frees the blocks at the first's
        # notice: the others may read blocks that belong to another request by then.
        raise InvalidRequestError(
            f"n: got {body.n}; prefill's KV blocks serve one sequence here, send n requests", "n"
        )


def _check_counts(media: list[ClientMedium], rules: Rules) -> None:
    limits: tuple[tuple[Modality, str, int], ...] = (
        ("image", "pictures", rules.limits.images),
        ("video", "videos", rules.limits.videos),
    )
    for modality, word, limit in limits:
        count = sum(medium.modality == modality for medium in media)
        if count and (modality not in rules.family.media or not limit):
            raise InvalidRequestError(f"This deployment takes no {word}.", "messages", "unsupported_media")
        if count > limit:
            message = f"messages: got {count} {word}; at most {limit} per request (media.limits.{modality}s)"
            raise InvalidRequestError(message, "messages", "too_many_media")


def _check_medium(medium: ClientMedium, limits: MediaLimits) -> None:
    scheme = medium.url[:8].lower()
    if not scheme.startswith(SCHEMES):
        shown = medium.url.partition(":")[0][:32]
        raise InvalidRequestError(
            f"{medium.modality}_url: got scheme {shown!r}; give one of {', '.join(SCHEMES)}", "messages"
        )
    if scheme.startswith("data:") and (size := _inline_bytes(medium.url)) > limits.bytes:
        message = f"{medium.modality}_url: {size} bytes; at most {limits.bytes} (media.limits.bytes)"
        raise InvalidRequestError(message, "messages", "media_too_large")


def _inline_bytes(url: str) -> int:
    encoded = len(url) - url.find(",", 0, _DATA_PREFIX) - 1
    return encoded * 3 // 4 - url[-2:].count("=")


def _check_processor_arguments(body: ChatBody, limits: MediaLimits) -> None:
    # `min_pixels` and `size` can blow a small picture up: the limit holds for what the encoder sees.
    for field in CHAT_MEDIA_FIELDS:
        for name, value in _numbers(known(getattr(body, field)), field):
            if abs(value) > limits.pixels:
                message = f"{name}: got {value}; at most {limits.pixels} (media.limits.pixels)"
                raise InvalidRequestError(message, field, "media_too_large")


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Every number below a JSON value with its path; a height and a width together count as an area."""
    pending = [(name, value)]
    while pending:
        path, item = pending.pop()
        if isinstance(item, int | float) and not isinstance(item, bool):
            yield path, item
        elif isinstance(item, list):
            pending.extend((path, inner) for inner in item)
        elif isinstance(item, dict):
            pending.extend((f"{path}.{key}", inner) for key, inner in item.items())
            height, width = item.get("height"), item.get("width")
            if isinstance(height, int | float) and isinstance(width, int | float):
                # A huge integer and a float have no product; each side has been judged by itself then.
                with suppress(OverflowError):
                    yield f"{path}.height * width", height * width


def _refuse_placeholders(texts: Iterable[tuple[str, str]], family: Family) -> None:
    placeholders = tuple(family.placeholders.values())
    for field, text in texts:
        for placeholder in placeholders:
            if placeholder in text:
                raise InvalidRequestError(
                    f"{field}: the text contains {placeholder!r}, which this model reserves for media; "
                    "remove it",
                    field,
                    "reserved_token",
                )


def _chat_texts(body: ChatBody) -> Iterator[tuple[str, str]]:
    for message in body.messages:
        for text in _message_texts(message):
            yield "messages", text
    for field in ("tools", "tool_choice", "documents", "chat_template_kwargs"):
        value = known(getattr(body, field))
        if value is not None:
            for text in _strings(msgspec.to_builtins(value)):
                yield field, text


def _message_texts(message: Message) -> Iterator[str]:
    run = ""
    for part in parts(message):
        if isinstance(part, TextPart | RefusalPart):
            # A chat template may join adjacent pieces, and "<|image_" + "pad|>" is a placeholder again.
            run += part.text if isinstance(part, TextPart) else part.refusal
        else:
            yield run
            run = ""
    yield run
    for value in (message.name, message.tool_call_id, message.reasoning, message.reasoning_content):
        if isinstance(value, str):
            yield value
    if isinstance(message.refusal, str):
        yield message.refusal
    for call in known(message.tool_calls) or ():
        yield call.function.name
        yield from _argument_texts(call.function.arguments)


def _argument_texts(arguments: str) -> Iterator[str]:
    # vLLM parses the arguments before the template prints them, so an escaped placeholder becomes a
    # literal one.
    yield arguments
    try:
        # As vLLM reads them: `NaN`, huge numbers and lone surrogates pass where a strict parser gives up.
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return
    yield from _strings(parsed)


def _strings(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _readable(error: Exception) -> InvalidRequestError:
    if isinstance(error, RecursionError):
        return InvalidRequestError("The body is nested too deep.", None, "invalid_json")
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return InvalidRequestError(f"The body is no JSON: {text}", None, "invalid_json")
    path = _PATH.search(text)
    where = path["path"] if path else ""
    if field := _UNKNOWN_FIELD.search(text):
        return _unknown_field(field["name"], where)
    if part := _UNKNOWN_TYPE.search(text):
        return _unknown_part(part["name"], where)
    if where.startswith("prompt"):
        text += "; the prompt must be text, token ids are refused"
    return InvalidRequestError(text, where or None)


def _unknown_field(name: str, where: str) -> InvalidRequestError:
    param = f"{where}.{name}" if where else name
    if reason := _CLIENT_MAY_NOT.get(name):
        return InvalidRequestError(f"{param}: may not be set by a client; {reason}", param, "forbidden_field")
    if reason := _NOT_SERVED.get(name):
        return InvalidRequestError(f"{param}: not served here; {reason}", param, "unsupported_field")
    return InvalidRequestError(f"{param}: unknown field; remove it", param, "unknown_field")


def _unknown_part(name: str, where: str) -> InvalidRequestError:
    if name.endswith("_embeds"):
        message = f"{where}: {name!r} may not be set by a client; embeddings are made by the engines"
        return InvalidRequestError(message, where, "forbidden_field")
    known_types = "text, refusal, image_url, video_url"
    return InvalidRequestError(f"{where}: got {name!r}; give one of {known_types}", where, "unknown_part")
