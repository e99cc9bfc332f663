"""Answers of `/v1/completions` in the shape of `/v1/chat/completions`.

Decode with an expanded prompt answers a completion; the client asked a chat. Only chats that need no
parser take this way (`legs.uses_expanded_prompt`), so the text is the content.
"""

from __future__ import annotations

from typing import Any

from .errors import EngineFailedError
from .events import DONE, END, event_of, is_data, is_error, read_object


def chat_answer(completion: dict[str, Any], role: str = "assistant") -> dict[str, Any]:
    """Return a completion as a chat completion.

    Raises:
        EngineFailedError: it is no completion.
    """
    choices = _choices(completion)
    answer = {
        "id": _chat_id(completion),
        "object": "chat.completion",
        "created": completion.get("created"),
        "model": completion.get("model"),
        "choices": [
            _choice(choice, {"message": {"role": role, "content": choice["text"]}}) for choice in choices
        ],
        "usage": completion.get("usage"),
    }
    return _with_optional(answer, completion, choices)


class ChatStream:
    """Turns the events of a completion stream into those of a chat stream.

    The first chunk is preceded by one that names the role, as every chat stream begins.
    """

    def __init__(self, role: str = "assistant") -> None:
        self._role = role
        self._begun = False

    def __call__(self, event: bytes) -> bytes:
        """Return the chat event, or events, for one completion event.

        Raises:
            EngineFailedError: it is no chunk of a completion.
        """
        if event == DONE or is_error(event) or not is_data(event):
            return event
        chunk = read_object(event)
        converted = event_of(self._chunk(chunk))
        if self._begun:
            return converted
        self._begun = True
        return event_of(self._opening(chunk)) + END + converted

    def _opening(self, chunk: dict[str, Any]) -> dict[str, Any]:
        delta = {"role": self._role, "content": ""}
        opening = self._frame(chunk)
        opening["choices"] = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]
        choices = _choices(chunk) or [{}]
        if (prompt := choices[0].get("prompt_token_ids")) is not None:
            opening["prompt_token_ids"] = prompt
        return opening

    def _chunk(self, chunk: dict[str, Any]) -> dict[str, Any]:
        converted = self._frame(chunk)
        choices = _choices(chunk)
        converted["choices"] = [_choice(choice, {"delta": {"content": choice["text"]}}) for choice in choices]
        for name in ("usage", "system_fingerprint"):
            if chunk.get(name) is not None:
                converted[name] = chunk[name]
        return converted

    def _frame(self, chunk: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": _chat_id(chunk),
            "object": "chat.completion.chunk",
            "created": chunk.get("created"),
            "model": chunk.get("model"),
        }


def _choices(completion: dict[str, Any]) -> list[dict[str, Any]]:
    choices = completion.get("choices") or []
    if not isinstance(choices, list) or not all(map(_has_text, choices)):
        raise EngineFailedError("decode", "the engine's answer is no completion: a choice without text")
    return choices


def _has_text(choice: object) -> bool:
    return isinstance(choice, dict) and isinstance(choice.get("text"), str)


def _chat_id(completion: dict[str, Any]) -> str:
    return "chatcmpl-" + str(completion.get("id", "")).removeprefix("cmpl-")


def _choice(choice: dict[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    converted = {"index": choice.get("index", 0), **text, "logprobs": None}
    converted["finish_reason"] = choice.get("finish_reason")
    for name in ("stop_reason", "token_ids"):
        if choice.get(name) is not None:
            converted[name] = choice[name]
    return converted


def _with_optional(
    answer: dict[str, Any], completion: dict[str, Any], choices: list[dict[str, Any]]
) -> dict[str, Any]:
    if completion.get("system_fingerprint") is not None:
        answer["system_fingerprint"] = completion["system_fingerprint"]
    if choices and choices[0].get("prompt_token_ids") is not None:
        answer["prompt_token_ids"] = choices[0]["prompt_token_ids"]
    return answer
