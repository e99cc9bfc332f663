"""One request driven through the stages by hand, so that a test can leave one fact out.

The router cannot be made to send a wrong identity, salt, grid or timing; these legs can. Every suite uses
them as its negative control: if leaving the fact out changed nothing, the suite would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from chat import GREEDY, Answer, Server, read

from mmdisagg_workers.contract import (
    DecodeForm,
    Medium,
    ModelInfo,
    cache_salt,
    decode_part,
    family,
    medium_from_report,
    placeholder_runs,
    prefill_part,
)

REMOTE_DECODE = {"do_remote_decode": True, "do_remote_prefill": False}
ONE_TOKEN = {"max_tokens": 1, "max_completion_tokens": 1}
MEDIA = {"image_url": "image", "video_url": "video"}
SAME_FOR_ALL = "0" * 64
"""A well-formed identity that says nothing: what decode would see if identities were left out."""


@dataclass(frozen=True)
class Prefilled:
    """What prefill leaves for decode."""

    content: list[Any]
    media: list[Medium]
    prompt_token_ids: list[int]
    kv_transfer_params: dict[str, Any]


@dataclass(frozen=True)
class Stages:
    """The engines of a deployment; None for a role that it has not."""

    encode: Server | None
    prefill: Server | None
    decode: Server
    info: ModelInfo

    def encode_medium(self, part: dict[str, Any]) -> tuple[Medium, dict[str, Any]]:
        """Run the encode leg of one medium; returns it with the engine's `ec_transfer_params`."""
        reply = self.encode.ask([part], **ONE_TOKEN)
        assert reply.status == 200, reply.body
        return self._reported(part, reply)

    def _reported(self, part: dict[str, Any], reply: Answer) -> tuple[Medium, dict[str, Any]]:
        ((identity, entry),) = reply.body["ec_transfer_params"].items()
        modality = MEDIA[part["type"]]
        placeholder = self.info.geometry.placeholders[modality].token_id
        run = sum(placeholder_runs(reply.prompt_token_ids, placeholder)) or None
        run = run if family(self.info.family).media[modality].grid is None else None
        medium = medium_from_report(
            family(self.info.family), self.info, modality, identity, entry["metadata"], run
        )
        return medium, {identity: entry}

    def prefill_content(
        self, content: list[Any], alter: Callable[[Medium], Medium] = lambda m: m
    ) -> Prefilled:
        """Run the encode and prefill legs of a message's content."""
        media, params, parts = [], {}, []
        for part in content:
            if part["type"] not in MEDIA:
                parts.append(part)
                continue
            medium, entry = self.encode_medium(part)
            media.append(medium)
            params |= entry
            parts.append(prefill_part(family(self.info.family), self.info, alter(medium)))
        reply = self.prefill.ask(
            parts,
            **ONE_TOKEN,
            kv_transfer_params=REMOTE_DECODE,
            **({"ec_transfer_params": params} if params else {}),
        )
        assert reply.status == 200, reply.body
        return Prefilled(content, media, reply.prompt_token_ids, reply.body["kv_transfer_params"])

    def prefill_picture(self, content: list[Any]) -> Prefilled:
        """Run the prefill leg of EP/D: content with one picture, which prefill sees itself."""
        (part,) = (part for part in content if part["type"] in MEDIA)
        reply = self.prefill.ask(content, **ONE_TOKEN, kv_transfer_params=REMOTE_DECODE)
        assert reply.status == 200, reply.body
        medium, _ = self._reported(part, reply)
        return Prefilled(content, [medium], reply.prompt_token_ids, reply.body["kv_transfer_params"])

    def answer_embedded(
        self, content: list[Any], medium: Medium, params: dict[str, Any] | None = None, **fields: Any
    ) -> Answer:
        """Run the decode leg of E/PD: content with one picture, loaded under its identity.

        `params` are its `ec_transfer_params`, which a shared volume needs none of.
        """
        embedded = prefill_part(family(self.info.family), self.info, medium)
        parts = [embedded if part["type"] in MEDIA else part for part in content]
        return self.decode.ask(parts, ec_transfer_params=params or {medium.identity: {}}, **fields)

    def decode_media(
        self,
        done: Prefilled,
        form: DecodeForm,
        alter: Callable[[Medium], Medium] = lambda m: m,
        **fields: Any,
    ) -> Answer:
        """Run a decode leg with media parts, each changed by `alter`."""
        media = iter(done.media)
        parts = [
            decode_part(family(self.info.family), self.info, alter(next(media)), form)
            if p["type"] in MEDIA
            else p
            for p in done.content
        ]
        return self.decode.ask(parts, kv_transfer_params=done.kv_transfer_params, **fields)

    def decode_tokens(self, done: Prefilled, salt: str | None = None, **fields: Any) -> Answer:
        """Run a decode leg with prefill's expanded token ids and a cache salt (the right one by default)."""
        salt = cache_salt([m.identity for m in done.media]) if salt is None else salt
        body = {"model": self.decode.model, "prompt": done.prompt_token_ids, **GREEDY, **fields}
        body |= {"cache_salt": salt, "kv_transfer_params": done.kv_transfer_params}
        response = self.decode.post("/v1/completions", body)
        reply = response.json()
        if response.status_code != 200:
            return read(response)
        choice = reply["choices"][0]
        return Answer(
            200, choice["text"], choice["token_ids"], done.prompt_token_ids, reply["usage"], {}, reply
        )


def without_identity(medium: Medium) -> Medium:
    """The medium as any other of its size."""
    return replace(medium, identity=SAME_FOR_ALL)


def reshaped(medium: Medium) -> Medium:
    """The medium with half the height and twice the width: the same count, other positions."""
    assert medium.grid is not None
    time, height, width = medium.grid
    return replace(medium, grid=(time, height // 2, width * 2))


def without_timing(medium: Medium) -> Medium:
    """The video with the timing that vLLM assumes when none is given."""
    assert medium.timing is not None
    return replace(medium, timing=tuple(1.0 for _ in medium.timing))
