"""Asking a chat server, and what came back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import requests

TOKEN_HEADER = "x-mmdisagg-stage-token"
DEADLINE_SECONDS = 120
GREEDY = {"temperature": 0, "max_tokens": 24, "return_token_ids": True}


@dataclass(frozen=True)
class Answer:
    """One reply: its text and tokens, or the error."""

    status: int
    text: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None

    @property
    def error(self) -> str:
        """The message of the OpenAI-style error, or the empty text."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return error["message"] if error else ""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the engine found in its caches."""
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


@dataclass(frozen=True)
class Server:
    """A chat server: the router, or one engine behind its stage token."""

    url: str
    model: str
    token: str | None = None

    def body(self, content: Any, **fields: Any) -> dict[str, Any]:
        """A greedy request with one user message; a field set to None is left out."""
        messages = content if isinstance(content, list) and "role" in content[0] else None
        body = {"model": self.model, "messages": messages or [{"role": "user", "content": content}]}
        return {k: v for k, v in {**body, **GREEDY, **fields}.items() if v is not None}

    def post(self, path: str, body: Any, **options: Any) -> requests.Response:
        """POST JSON with the stage token, if the server has one."""
        headers = {TOKEN_HEADER: self.token} if self.token else {}
        headers |= options.pop("headers", {})
        options = {"timeout": DEADLINE_SECONDS, **options}
        return requests.post(self.url + path, json=body, headers=headers, **options)

    def ask(self, content: Any, **fields: Any) -> Answer:
        """Send one request and wait for the whole answer."""
        return read(self.post("/v1/chat/completions", self.body(content, **fields)))

    def stream(self, content: Any, **fields: Any) -> Answer:
        """Send one streaming request and join its chunks."""
        body = self.body(content, **{"stream_options": {"include_usage": True}, **fields}, stream=True)
        response = self.post("/v1/chat/completions", body, stream=True)
        return join(response) if response.status_code == 200 else read(response)

    def ask_all(self, contents: list[Any], at_once: int = 8, **fields: Any) -> list[Answer]:
        """Send many requests side by side; answers come in the order of `contents`."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda content: self.ask(content, **fields), contents))

    def stream_all(self, contents: list[Any], at_once: int = 8, **fields: Any) -> list[Answer]:
        """As `ask_all`, every answer a stream."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda content: self.stream(content, **fields), contents))

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a Prometheus metric over all series that carry `labels`."""
        text = requests.get(self.url + "/metrics", timeout=DEADLINE_SECONDS).text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = (line for line in text.splitlines() if line.startswith((name + "{", name + " ")))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(w in line for w in wanted))


def read(response: requests.Response) -> Answer:
    """Read a reply that is not a stream."""
    headers = dict(response.headers)
    try:
        body = response.json()
    except ValueError:
        return Answer(response.status_code, headers=headers, body=response.text)
    if response.status_code != 200:
        return Answer(response.status_code, headers=headers, body=body)
    choice = body["choices"][0]
    return Answer(
        200,
        choice["message"]["content"],
        choice.get("token_ids"),
        body.get("prompt_token_ids"),
        body.get("usage") or {},
        headers,
        body,
    )


def events(response: requests.Response) -> Iterator[str]:
    """The data of each server-sent event, `[DONE]` included."""
    for line in response.iter_lines(decode_unicode=True):
        if line.startswith("data: "):
            yield line[6:]


def join(response: requests.Response) -> Answer:
    """Join a stream's chunks into one answer; an error event becomes status 500."""
    text, tokens, prompt, usage, done = "", [], None, {}, False
    chunks: list[Any] = []
    for event in events(response):
        if event == "[DONE]":
            done = True
            continue
        chunk = json.loads(event)
        chunks.append(chunk)
        if "error" in chunk:
            return Answer(500, text, tokens, prompt, usage, dict(response.headers), chunk)
        prompt = chunk.get("prompt_token_ids") or prompt
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            tokens += choice.get("token_ids") or []
    return Answer(200 if done else 599, text, tokens, prompt, usage, dict(response.headers), chunks)
