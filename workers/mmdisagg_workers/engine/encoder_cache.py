"""Encoder-cache connectors: how embeddings reach, or must not be missed by, an engine.

    RequestGate               a request whose media the engine cannot obtain fails alone
    ├── SharedVolumeConnector     encode publishes files, prefill (decode in E/PD) loads them
    └── DecodeGuardConnector      decode has no embeddings: KV blocks must cover every picture
    ReportingConnector        EP/D's prefill encodes by itself and only reports identity and metadata

Without the gate vLLM 0.32.0 would run a metadata-only item through the vision tower, which kills the
engine, or embed zeros, which gives wrong text with HTTP 200.

vLLM makes two instances: one in the scheduler process (`ensure_cache_available` before each attempt to
schedule a request, waiting, resumed after preemption, or running; `update_state_after_alloc` when an item
is about to be placed in the encoder cache; `build_connector_meta` at the end of each step) and one in each
worker process (`start_save_caches`, `start_load_caches` before the model runs; `save_caches` after the
vision tower ran). Requests that `take_unavailable_requests` returns end as HTTP 500.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata

from mmdisagg_workers.contract import Family, IdentityError, check_identity, family

from .embedding_metrics import EmbeddingPromMetrics, EmbeddingStats
from .embedding_store import EmbeddingStore, OpenEmbedding, load
from .media_report import MediaReport
from .settings import FAMILY, GEOMETRY, geometry_from_json
from .token_prompts import TokenPrompts

logger = logging.getLogger(__name__)

STORE_KEY: Final = "shared_storage_path"
"""Key of `ec_connector_extra_config` that names the shared directory."""
_STEPS_IN_FLIGHT: Final = 64
"""More scheduler steps than a worker can be behind (pipeline stages, asynchronous scheduling)."""


@dataclass
class HandoffPlan(ECConnectorMetadata):
    """What the scheduler tells the workers for one step.

    Attributes:
        loads: identity to the path of the embedding that must be in the encoder cache.
        wanted: identities in use, which must be in the store when the step ends.
    """

    loads: dict[str, str] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)


class _Connector(ECConnectorBase):
    """Defaults: moves nothing, has nothing, counts what happens."""

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role)
        self._stats = EmbeddingStats()

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: Any) -> None:
        """Worker: nothing to load."""

    def save_caches(self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: Any) -> None:
        """Worker: nothing to save."""

    def has_cache_item(self, identifier: str) -> bool:
        """Scheduler: whether the embedding can be loaded instead of computed."""
        return False

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        """Scheduler: an item is about to enter the encoder cache, here by the engine's own vision tower."""
        self._stats.add("encodes")

    def build_connector_meta(self, scheduler_output: Any) -> ECConnectorMetadata:
        """Scheduler: the plan of this step."""
        return HandoffPlan()

    def get_ec_connector_stats(self) -> EmbeddingStats | None:
        """Scheduler: counts since the last call."""
        return None if self._stats.is_empty() else self._stats.take()

    @classmethod
    def build_ec_connector_stats(cls, data: dict[str, Any] | None = None) -> EmbeddingStats:
        """API server: counts as they arrive from the engine."""
        return EmbeddingStats(dict(data or {}))

    @classmethod
    def build_prom_metrics(cls, *args: Any) -> EmbeddingPromMetrics:
        """API server: the Prometheus counters."""
        return EmbeddingPromMetrics(*args)


class RequestGate(_Connector):
    """Lets a request be scheduled only when every embedding that it still needs can be had."""

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        placeholders = geometry_from_json(os.environ.get(GEOMETRY, "")).placeholders.values()
        self._token_prompts = TokenPrompts(frozenset(p.token_id for p in placeholders))
        self._unavailable: set[str] = set()

    def obtain(self, request: Any, index: int) -> bool:
        """Scheduler: make sure that the embedding of one medium can be loaded; False when it cannot."""
        return False

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Scheduler: hold a request back, and mark it to fail, when an embedding it needs is missing."""
        missing = [i for i in needed(request, num_computed_tokens) if not self.obtain(request, i)]
        if not missing:
            return True
        self._fail(request.request_id, [request.mm_features[i].identifier for i in missing])
        return False

    def build_connector_meta(self, scheduler_output: Any) -> ECConnectorMetadata:
        """Scheduler: mark token prompts to fail whose placeholders this step would compute."""
        for request_id in self._token_prompts.uncovered(scheduler_output):
            self._fail(request_id, ["placeholder tokens"])
        return super().build_connector_meta(scheduler_output)

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """Scheduler: forget the request."""
        self._token_prompts.forget(request.request_id)
        return False, None

    def _fail(self, request_id: str, media: list[str]) -> None:
        if request_id not in self._unavailable:
            self._unavailable.add(request_id)
            self._stats.add("missing")
            logger.warning("request %s fails: no embedding for %s", request_id, media)

    def take_unavailable_requests(self) -> set[str]:
        """Scheduler: the requests to fail, once."""
        taken, self._unavailable = self._unavailable, set()
        return taken


class DecodeGuardConnector(RequestGate):
    """Decode in E/P/D and EP/D (`ec_consumer`): no embedding can ever be had.

    A request passes while KV blocks cover its media. One that lost them (sent without KV parameters, or
    preempted and to be recomputed) fails alone instead of embedding zeros or placeholder tokens.
    """


class ReportingConnector(_Connector):
    """Prefill in EP/D (`ec_both`): the engine encodes by itself; the answer names identity and metadata."""

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        self._report = MediaReport(_contract())

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """Scheduler: what the response's `ec_transfer_params` carry."""
        return False, self._report.of(request.mm_features)


class SharedVolumeConnector(RequestGate):
    """Encode (`ec_producer`) and its consumers (`ec_consumer`) share a directory."""

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        root = vllm_config.ec_transfer_config.get_from_extra_config(STORE_KEY, None)
        if not root:
            raise ValueError(f"ec_connector_extra_config.{STORE_KEY} is missing; name the shared directory")
        self._store = EmbeddingStore(Path(root))
        self._report = MediaReport(_contract())
        self._plan = HandoffPlan()
        self._held: dict[tuple[str, int], OpenEmbedding] = {}
        self._let_go: deque[tuple[int, OpenEmbedding]] = deque()
        self._step = 0

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Scheduler: note what encode must publish; hold a consumer's request back as the gate does."""
        if self.is_consumer:
            return super().ensure_cache_available(request, num_computed_tokens)
        self._plan.wanted.update(f.identifier for f in request.mm_features)
        return True

    def obtain(self, request: Any, index: int) -> bool:
        """Scheduler: open the embedding, and keep it open until the request no longer needs it."""
        key = (request.request_id, index)
        if key not in self._held:
            opened = self._open(request, index)
            if opened is None:
                return False
            self._held[key] = opened
        return True

    def has_cache_item(self, identifier: str) -> bool:
        """Scheduler: consumers load every item, since the gate has let pass only what was found.

        A producer never skips its vision tower for a file: vLLM would then take the item for cached, and
        could not publish it again once the file is gone.
        """
        return bool(self.is_consumer)

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        """Scheduler: plan the load of one item (consumer) or count its encoding (producer)."""
        if not self.is_consumer:
            super().update_state_after_alloc(request, index)
            return
        self._plan.loads[request.mm_features[index].identifier] = self._held[request.request_id, index].path
        self._stats.add("loads")

    def update_state_after_free(self, request: Any, index: int) -> None:
        """Scheduler: the item's placeholders are computed."""
        self._let_go_of((request.request_id, index))

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """Scheduler: give up what the request held; a producer reports its media."""
        super().request_finished(request)
        for index in range(len(request.mm_features)):
            self._let_go_of((request.request_id, index))
        return False, self._report.of(request.mm_features) if self.is_producer else None

    def build_connector_meta(self, scheduler_output: Any) -> ECConnectorMetadata:
        """Scheduler: hand the plan to the workers, and close files that no step in flight can need."""
        super().build_connector_meta(scheduler_output)
        plan, self._plan = self._plan, HandoffPlan()
        self._step += 1
        while self._let_go and self._let_go[0][0] + _STEPS_IN_FLIGHT < self._step:
            self._let_go.popleft()[1].close()
        return plan

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: Any) -> None:
        """Worker: read the planned embeddings into the encoder cache."""
        from vllm.platforms import current_platform

        for identity, path in self._get_connector_metadata().loads.items():
            if identity not in encoder_cache:
                encoder_cache[identity] = load(path).to(current_platform.device_type)

    def start_save_caches(self, **kwargs: Any) -> None:
        """Worker: publish again what the engine still has cached but the store has lost."""
        encoder_cache: dict[str, torch.Tensor] = kwargs["encoder_cache"]
        for identity in self._get_connector_metadata().wanted & encoder_cache.keys():
            self.save_caches(encoder_cache, identity)

    def save_caches(self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: Any) -> None:
        """Worker: publish one embedding; a store that cannot be written fails the request, not the engine."""
        if not self.is_producer:
            return
        try:
            self._store.publish(mm_hash, encoder_cache[mm_hash])
        except (OSError, IdentityError):
            logger.exception("embedding %s was not published", mm_hash)

    def _open(self, request: Any, index: int) -> OpenEmbedding | None:
        feature = request.mm_features[index]
        try:
            opened = self._store.open(check_identity(feature.identifier))
        except IdentityError:
            return None
        if opened is not None and opened.shape[0] != feature.mm_position.get_num_embeds():
            opened.close()
            return None
        return opened

    def _let_go_of(self, key: tuple[str, int]) -> None:
        opened = self._held.pop(key, None)
        if opened is not None:
            self._let_go.append((self._step, opened))


def needed(request: Any, num_computed_tokens: int) -> Iterator[int]:
    """Indices of the media whose placeholders are not all covered by `num_computed_tokens`."""
    for index, feature in enumerate(request.mm_features):
        position = feature.mm_position
        if position.offset + position.length > num_computed_tokens:
            yield index


def _contract() -> Family:
    return family(os.environ.get(FAMILY, ""))
