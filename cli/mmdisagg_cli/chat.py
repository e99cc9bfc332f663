"""Asks a served model one question through the OpenAI Python client, as any user of the API would."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import openai
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from mmdisagg_cli.errors import CommandError
from mmdisagg_cli.scenes import ImageItem, TextItem

Content = Sequence[TextItem | ImageItem]
"""The content of a user's message: texts and pictures in their order."""


class ChatError(CommandError):
    """The server refused the request or could not be reached."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer: its text, its token ids and the headers that came with it (names in lower case)."""

    text: str
    token_ids: tuple[int, ...]
    headers: Mapping[str, str]


class ChatClient:
    """A client for one server at `url`; safe to share between threads."""

    def __init__(self, url: str, model: str, timeout_s: float = 120.0) -> None:
        self._model = model
        self._client = openai.OpenAI(
            base_url=f"{url}/v1",
            api_key="none",
            timeout=timeout_s,
            max_retries=0,
            # A proxy of the user's shell is not for loopback.
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )

    def ask(self, content: Content, max_tokens: int) -> Answer:
        """Send one user message and return the greedy answer.

        Raises:
            ChatError: when no complete answer came.
        """
        message = cast(ChatCompletionMessageParam, {"role": "user", "content": list(content)})
        try:
            reply = self._client.chat.completions.with_raw_response.create(
                model=self._model,
                messages=[message],
                temperature=0,
                max_tokens=max_tokens,
                extra_body={"return_token_ids": True},
            )
            return _answer(reply.parse(), {name.lower(): value for name, value in reply.headers.items()})
        except openai.OpenAIError as error:
            raise ChatError(_in_words(error)) from error


def _answer(completion: ChatCompletion, headers: Mapping[str, str]) -> Answer:
    choice = completion.choices[0]
    token_ids: Any = (choice.model_extra or {}).get("token_ids")
    if not isinstance(token_ids, list):
        raise ChatError("the server returned no token ids, so nothing can be compared")
    return Answer(choice.message.content or "", tuple(token_ids), headers)


def _in_words(error: openai.OpenAIError) -> str:
    if isinstance(error, openai.APIStatusError):
        body = error.body if isinstance(error.body, dict) else {}
        return f"HTTP {error.status_code}: {body.get('message', error.message)}"
    return str(error)
