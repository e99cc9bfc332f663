"""What engines answer: the parts the router reads, and the checks on them.

Shapes are those of vLLM 0.32.0. A chat carries its `prompt_token_ids` at the top, a completion in its
first choice. An engine that answers anything else has failed: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from mmdisagg_workers.contract import ContractError, Medium, medium_from_report, placeholder_runs

from .errors import EngineFailedError, EngineRefusedError, PromptMismatchError, RouterError
from .legs import EncodedMedia, EncodedMedium, Model
from .validation import ClientMedium

_SHOWN: Final = 500


class _Entry(Struct):
    metadata: dict[str, Any] = {}
    item_indices: list[int] = []


class _Choice(Struct):
    prompt_token_ids: list[int] | None = None


class EngineReply(Struct):
    """The parts of a non-streaming answer that steer the next legs."""

    choices: list[_Choice] = []
    prompt_token_ids: list[int] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None

    @property
    def prompt(self) -> list[int] | None:
        """The expanded prompt token ids, wherever this API puts them."""
        if self.prompt_token_ids is not None or not self.choices:
            return self.prompt_token_ids
        return self.choices[0].prompt_token_ids


class _ErrorInfo(Struct):
    message: str = ""
    type: str | None = None
    param: str | None = None
    code: Any = None


class _ErrorBody(Struct):
    error: _ErrorInfo | str | None = None
    message: str | None = None
    detail: Any = None


_reply = msgspec.json.Decoder(EngineReply)
_error = msgspec.json.Decoder(_ErrorBody)


def read_reply(stage: str, data: bytes) -> EngineReply:
    """Read an engine's answer.

    Raises:
        EngineFailedError: it is no answer of the API.
    """
    try:
        return _reply.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EngineFailedError(stage, f"the engine's answer cannot be read: {error}") from None


def read_answer(stage: str, data: bytes) -> tuple[dict[str, Any], EngineReply]:
    """Read an engine's answer as a whole, for the client, and the parts of it that are checked.

    Raises:
        EngineFailedError: it is no answer of the API.
    """
    try:
        answer: dict[str, Any] = msgspec.json.decode(data)
        return answer, msgspec.convert(answer, EngineReply)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EngineFailedError(stage, f"the engine's answer cannot be read: {error}") from None


def engine_error(stage: str, status: int, data: bytes) -> RouterError:
    """Turn an engine's error response into the router's: 4xx is the client's, the rest the engine's.

    A refused stage token (401, 403) is a fault of the deployment, never of the client.
    """
    info = _error_info(data)
    message = info.message[:_SHOWN] or f"HTTP status {status}"
    if 400 <= status < 500 and status not in (401, 403):
        return EngineRefusedError(status, message, info.type, info.param, info.code)
    return EngineFailedError(stage, f"the engine answered HTTP {status}: {message}")


def stream_error(stage: str, data: bytes) -> RouterError:
    """Turn an error event of a stream into the router's error; its `code` is the HTTP status."""
    code = _error_info(data).code
    return engine_error(stage, code if isinstance(code, int) else 500, data)


def encoded_medium(model: Model, wanted: ClientMedium, reply: EngineReply) -> EncodedMedium:
    """Read an encode leg's answer.

    Raises:
        EngineFailedError: it lacks a fact that a later stage needs.
    """
    entries = reply.ec_transfer_params or {}
    if len(entries) != 1:
        raise EngineFailedError("encode", f"the engine reported {len(entries)} media for one")
    ((identity, entry),) = entries.items()
    run = _placeholders(model, wanted, reply)
    return EncodedMedium(_medium(model, wanted, identity, entry, run), entry)


def prefilled_media(model: Model, wanted: Sequence[ClientMedium], reply: EngineReply) -> EncodedMedia:
    """Read the media of a prefill that encoded them itself, in the client's order.

    Raises:
        EngineFailedError: the answer lacks a fact that decode needs.
    """
    reported = reply.ec_transfer_params or {}
    by_index: dict[int, tuple[str, dict[str, Any]]] = {}
    for identity, entry in reported.items():
        for index in _converted("prefill", entry).item_indices:
            if index in by_index:
                raise EngineFailedError("prefill", f"the engine reported two identities of medium {index}")
            by_index[index] = (identity, entry)
    if wanted and sorted(by_index) != list(range(len(wanted))):
        message = f"the engine reported media {sorted(by_index)}, the request has {len(wanted)}"
        raise EngineFailedError("prefill", message)
    runs = _runs(model, wanted, reply.prompt or [])
    return EncodedMedia(
        tuple(
            _medium(model, medium, *by_index[index], runs[index], stage="prefill")
            for index, medium in enumerate(wanted)
        )
    )


def check_placeholders(stage: str, model: Model, encoded: EncodedMedia, prompt: Sequence[int] | None) -> None:
    """Check that a prompt has exactly the placeholder tokens that its media account for.

    Raises:
        PromptMismatchError: it has more, fewer, or is unknown.
    """
    if prompt is None:
        raise PromptMismatchError(stage, "the engine did not return its prompt token ids")
    for modality, placeholder in model.info.geometry.placeholders.items():
        expected = sum(medium.tokens for medium in encoded.media if medium.modality == modality)
        found = prompt.count(placeholder.token_id)
        if found != expected:
            message = f"the prompt has {found} {modality} placeholder tokens, its media have {expected}"
            raise PromptMismatchError(stage, message)


def check_same_prompt(prefill: Sequence[int], decode: Sequence[int] | None) -> None:
    """Check that decode saw prefill's prompt.

    Raises:
        PromptMismatchError: it saw another one, or did not say.
    """
    if decode is None:
        raise PromptMismatchError("decode", "the engine did not return its prompt token ids")
    if list(decode) != list(prefill):
        message = f"its prompt ({len(decode)} tokens) is not prefill's ({len(prefill)} tokens)"
        raise PromptMismatchError("decode", message)


def _error_info(data: bytes) -> _ErrorInfo:
    try:
        body = _error.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return _ErrorInfo(data[:_SHOWN].decode("utf-8", "replace"))
    if isinstance(body.error, _ErrorInfo):
        return body.error
    return _ErrorInfo(body.error or body.message or (str(body.detail) if body.detail else ""))


def _converted(stage: str, entry: object) -> _Entry:
    try:
        return msgspec.convert(entry, _Entry)
    except msgspec.ValidationError as error:
        raise EngineFailedError(stage, f"ec_transfer_params: {error}") from None


def _medium(
    model: Model,
    medium: ClientMedium,
    identity: str,
    entry: dict[str, Any],
    run: int | None,
    stage: str = "encode",
) -> Medium:
    metadata = _converted(stage, entry).metadata
    try:
        return medium_from_report(model.family, model.info, medium.modality, identity, metadata, run)
    except ContractError as error:
        raise EngineFailedError(stage, str(error)) from None


def _placeholders(model: Model, medium: ClientMedium, reply: EngineReply) -> int | None:
    placeholder = model.info.geometry.placeholders.get(medium.modality)
    if placeholder is None or reply.prompt is None:
        return None
    return reply.prompt.count(placeholder.token_id)


def _runs(model: Model, wanted: Sequence[ClientMedium], prompt: Sequence[int]) -> list[int | None]:
    if model.family.has_grid or not wanted:
        return [None] * len(wanted)
    runs = placeholder_runs(prompt, model.info.geometry.placeholders["image"].token_id)
    if len(runs) == len(wanted):
        return list(runs)
    # Pictures without text between them make one run; every picture of such a family has equally many.
    tokens, rest = divmod(sum(runs), len(wanted))
    return [None if rest else tokens] * len(wanted)
