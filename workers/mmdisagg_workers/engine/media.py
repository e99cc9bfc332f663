"""The media connector `mmdisagg`: how a worker turns what a request names into pictures and tensors.

Registered in vLLM's media connector registry and chosen by `VLLM_MEDIA_CONNECTOR=mmdisagg`. Embeddings are
made from descriptors only, so no client or peer can hand this process a pickled tensor. URLs are fetched
behind the fetch guard. Errors leave as vLLM's own: 400 for what the request got wrong, 422 for media that
their origin did not deliver.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

import torch
from vllm.exceptions import VLLMError, VLLMUnprocessableEntityError, VLLMValidationError
from vllm.multimodal.media.connector import MEDIA_CONNECTOR_REGISTRY, MediaConnector, global_thread_pool

from mmdisagg_workers.contract import ContractError, ZeroEmbedding, decode_descriptor

from .fetch_guard import MediaFetcher, MediaRefused, MediaUnavailable
from .settings import MediaPolicy, WorkerSettings

NAME: Final = "mmdisagg"
_FETCH_SECONDS: Final = 30.0
_T = TypeVar("_T")


def register() -> None:
    """Make the connector known to vLLM under `NAME`."""
    MEDIA_CONNECTOR_REGISTRY.register(NAME)(GuardedMediaConnector)


def materialise(text: object) -> torch.Tensor:
    """Make the tensor that a descriptor describes: zeros of its shape, or the values that it spells out.

    Raises:
        VLLMValidationError: anything but a valid descriptor.
    """
    try:
        described = decode_descriptor(text)
    except ContractError as error:
        raise VLLMValidationError(str(error), parameter=error.field) from None
    dtype = getattr(torch, described.dtype)
    if isinstance(described, ZeroEmbedding):
        return torch.zeros(described.shape, dtype=dtype)
    return torch.tensor(described.values, dtype=dtype)


class GuardedMediaConnector(MediaConnector):
    """vLLM's media connector with guarded fetching and embeddings by description."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._policy: MediaPolicy = WorkerSettings.from_environ(os.environ).media

    def load_from_url(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
        """Load a medium from a data URL; other URLs are fetched asynchronously only."""
        self._check_size(url)
        if _is_data(url):
            return _decoded(self._load_data_url, url, media_io)
        raise VLLMValidationError("media URL: this entry point takes data URLs only", parameter="url")

    async def load_from_url_async(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
        """Load a medium from a data URL, or fetch it over http or https behind the guard.

        Raises:
            VLLMValidationError: forbidden URL, too large, or bytes that are no medium of the kind (400).
            VLLMUnprocessableEntityError: the origin did not deliver (422).
        """
        self._check_size(url)
        loop = asyncio.get_running_loop()
        if _is_data(url):
            return await loop.run_in_executor(
                global_thread_pool, _decoded, self._load_data_url, url, media_io
            )
        body = await self._fetch(url, fetch_timeout or _FETCH_SECONDS)
        return await loop.run_in_executor(global_thread_pool, _decoded, media_io.load_bytes, body)

    def fetch_image_embedding(self, data: str) -> torch.Tensor:
        """Make one tensor of an `image_embeds` part."""
        return materialise(data)

    async def fetch_image_embedding_async(self, data: str) -> torch.Tensor:
        """Make one tensor of an `image_embeds` part."""
        return materialise(data)

    def fetch_video_embedding(self, data: str) -> torch.Tensor:
        """Make one tensor of a `video_embeds` part."""
        return materialise(data)

    async def fetch_video_embedding_async(self, data: str) -> torch.Tensor:
        """Make one tensor of a `video_embeds` part."""
        return materialise(data)

    def fetch_audio_embedding(self, data: str) -> NoReturn:
        """Refuse: no family with audio has a decode contract."""
        raise VLLMValidationError("audio_embeds are not served", parameter="audio_embeds")

    async def fetch_audio_embedding_async(self, data: str) -> NoReturn:
        """Refuse: no family with audio has a decode contract."""
        self.fetch_audio_embedding(data)

    def _check_size(self, url: str) -> None:
        # Four characters of base64 carry three bytes.
        if _is_data(url) and len(url) * 3 // 4 > self._policy.bytes + 1024:
            raise VLLMValidationError(
                f"media URL: the medium is larger than {self._policy.bytes} bytes", parameter="url"
            )

    async def _fetch(self, url: str, seconds: float) -> bytes:
        try:
            return await MediaFetcher(self._policy).fetch(url, seconds)
        except MediaRefused as refused:
            raise VLLMValidationError(str(refused), parameter="url") from None
        except MediaUnavailable as unavailable:
            raise VLLMUnprocessableEntityError(str(unavailable), parameter="url") from None


def _is_data(url: str) -> bool:
    return url[:5].lower() == "data:"


def _decoded(load: Callable[..., _T], *args: Any) -> _T:
    try:
        return load(*args)
    except VLLMError:
        raise
    # Decoders raise whatever a broken file leads them to (SyntaxError, struct.error, KeyError and more).
    except Exception as error:
        raise VLLMValidationError(f"media: the bytes are not readable: {error}", parameter="url") from error
