"""The encode stage: each distinct medium of a request to one engine, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from mmdisagg_workers.contract import Role

from .body import ChatBody
from .dispatch import Dispatcher, Tried
from .engines import EngineSet
from .errors import EngineFailedError
from .legs import EncodedMedia, EncodedMedium, encode_leg
from .media_cache import MediaCache, Scope, media_key
from .replies import encoded_medium
from .trace import Trace
from .validation import ClientMedium


class EncodeStage:
    """Encodes the media of requests, and remembers what it learnt about inline ones."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._cache = MediaCache()

    async def encode(
        self,
        body: ChatBody,
        media: Sequence[ClientMedium],
        engines: EngineSet,
        trace: Trace,
        *,
        again: bool = False,
    ) -> EncodedMedia:
        """Encode the media of one request.

        Args:
            body: the client's chat.
            media: its media, in order.
            engines: the set that serves the request.
            trace: the request.
            again: whether an embedding was lost, so that nothing remembered may be used.

        Raises:
            RouterError: the first failure; the other legs are cancelled.
        """
        scope = Scope(engines.model.info.revision, trace.tenant)
        keys = {medium: media_key(medium, body, scope) for medium in media}
        if again:
            self._cache.forget(keys.values())
        found = self._remembered(keys)
        if not again:
            trace.looked_up, trace.remembered = sum(key is not None for key in keys.values()), len(found)
        missing = [medium for medium in keys if medium not in found]
        if missing:
            with trace.timed(Role.ENCODE):
                fresh = await self._encode_all(body, missing, engines, trace)
            for medium, encoded in zip(missing, fresh, strict=True):
                found[medium] = encoded
                self._cache.put(keys[medium], encoded)
        return EncodedMedia.gathered([found[medium] for medium in media])

    def _remembered(self, keys: Mapping[ClientMedium, bytes | None]) -> dict[ClientMedium, EncodedMedium]:
        looked_up = ((medium, self._cache.get(key)) for medium, key in keys.items())
        return {medium: encoded for medium, encoded in looked_up if encoded is not None}

    async def _encode_all(
        self, body: ChatBody, media: Sequence[ClientMedium], engines: EngineSet, trace: Trace
    ) -> list[EncodedMedium]:
        async def one(medium: ClientMedium, tried: Tried) -> EncodedMedium:
            reply = await self._dispatcher.reply(encode_leg(body, medium), trace, tried)
            return encoded_medium(engines.model, medium, reply)

        async def one_or_once_more(medium: ClientMedium) -> EncodedMedium:
            tried = Tried(engines)
            try:
                return await one(medium, tried)
            except EngineFailedError:
                trace.retries += 1
                return await one(medium, tried)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one_or_once_more(medium)) for medium in media]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]
