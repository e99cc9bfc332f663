"""Encoder-cache connectors: how embeddings reach, or must not be missed by, an engine.

    RequestGate               a request whose media the engine cannot obtain fails alone
    ├── LoadingConnector          encode publishes embeddings, prefill (decode in E/PD) loads them
    │   ├── SharedVolumeConnector     as files in a directory
    │   └── TcpConnector              from encode's memory (package `tcp_handoff`)
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata

from mmdisagg_workers.contract import FAMILY, Family, IdentityError, check_identity, family

from .embedding_metrics import EmbeddingPromMetrics, EmbeddingStats
from .embedding_store import EmbeddingStore, OpenEmbedding, load
from .media_report import MediaReport
from .settings import GEOMETRY, geometry_from_json
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
        loads: what must be in the encoder cache: identity to what the connector's `load` takes.
        wanted: identities in use, which must be in the store when the step ends.
        reserved: numbers of reservations, and the identity that each keeps in the store.
    """

    loads: dict[str, Any] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)
    reserved: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Obtained:
    """How a request's media stand; all are there when both say nothing.

    Attributes:
        missing: indices of media that cannot be had.
        coming: whether some are on their way.
    """

    missing: Sequence[int] = ()
    coming: bool = False


class Held(Protocol):
    """An embedding that a request holds from the decision to use it until its placeholders are computed."""

    @property
    def source(self) -> Any:
        """What the connector's `load` takes; must be picklable."""

    def close(self) -> None:
        """Give it up."""


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

    def obtain(self, request: Any, indices: Sequence[int]) -> Obtained:
        """Scheduler: see to it that the embeddings of some media can be loaded; never waits."""
        return Obtained(missing=indices)

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Scheduler: hold a request back while an embedding comes; mark it to fail when one is missing."""
        obtained = self.obtain(request, list(needed(request, num_computed_tokens)))
        if obtained.missing:
            self._fail(request.request_id, [request.mm_features[i].identifier for i in obtained.missing])
        return not (obtained.missing or obtained.coming)

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


class LoadingConnector(RequestGate):
    """Encode (`ec_producer`) publishes embeddings, its consumers (`ec_consumer`) load them.

    How is said by subclasses: `obtain` and `load` on consumers, `publish` on encode.
    """

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        self._report = MediaReport(_contract())
        self._plan = HandoffPlan()
        self._held: dict[tuple[str, int], Any] = {}
        self._let_go: deque[tuple[int, Held]] = deque()
        self._step = 0

    def load(self, source: Any) -> torch.Tensor:
        """Worker: read an embedding, shape [rows, width], on the CPU."""
        raise NotImplementedError

    def publish(self, identity: str, embedding: torch.Tensor) -> None:
        """Worker: make an embedding available, unless it is.

        Raises:
            ValueError: malformed identity or shape.
            OSError: there is no room.
        """
        raise NotImplementedError

    def report(self, request: Any) -> dict[str, dict[str, Any]] | None:
        """Scheduler: what the response's `ec_transfer_params` carry."""
        return self._report.of(request.mm_features)

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Scheduler: note what encode must publish; hold a consumer's request back as the gate does."""
        if self.is_consumer:
            return super().ensure_cache_available(request, num_computed_tokens)
        self._plan.wanted.update(f.identifier for f in request.mm_features)
        return True

    def has_cache_item(self, identifier: str) -> bool:
        """Scheduler: consumers load every item, since the gate has let pass only what was found.

        A producer never skips its vision tower for what it has published: vLLM would then take the item for
        cached, and could not publish it again once it is gone.
        """
        return bool(self.is_consumer)

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        """Scheduler: plan the load of one item (consumer) or count its encoding (producer)."""
        if not self.is_consumer:
            super().update_state_after_alloc(request, index)
            return
        self._plan.loads[request.mm_features[index].identifier] = self._held[request.request_id, index].source
        self._stats.add("loads")

    def update_state_after_free(self, request: Any, index: int) -> None:
        """Scheduler: the item's placeholders are computed."""
        self._let_go_of((request.request_id, index))

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """Scheduler: give up what the request held; a producer reports its media."""
        super().request_finished(request)
        self._let_go_of_all(request)
        return False, self.report(request) if self.is_producer else None

    def build_connector_meta(self, scheduler_output: Any) -> ECConnectorMetadata:
        """Scheduler: hand the plan to the workers, and close what no step in flight can need."""
        super().build_connector_meta(scheduler_output)
        plan, self._plan = self._plan, HandoffPlan()
        self._step += 1
        while self._let_go and self._let_go[0][0] + _STEPS_IN_FLIGHT < self._step:
            self._let_go.popleft()[1].close()
        return plan

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: Any) -> None:
        """Worker: read the planned embeddings into the encoder cache."""
        from vllm.platforms import current_platform

        for identity, source in self._get_connector_metadata().loads.items():
            if identity not in encoder_cache:
                encoder_cache[identity] = self.load(source).to(current_platform.device_type)

    def start_save_caches(self, **kwargs: Any) -> None:
        """Worker: publish again what the engine still has cached but may no longer have published."""
        encoder_cache: dict[str, torch.Tensor] = kwargs["encoder_cache"]
        for identity in self._get_connector_metadata().wanted & encoder_cache.keys():
            self.save_caches(encoder_cache, identity)

    def save_caches(self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: Any) -> None:
        """Worker: publish one embedding; when that fails it is not reported, and the engine lives."""
        if not self.is_producer:
            return
        try:
            self.publish(mm_hash, encoder_cache[mm_hash])
        except (OSError, ValueError):
            logger.exception("embedding %s was not published", mm_hash)

    def _let_go_of(self, key: tuple[str, int]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._let_go.append((self._step, held))

    def _let_go_of_all(self, request: Any) -> None:
        for index in range(len(request.mm_features)):
            self._let_go_of((request.request_id, index))


class SharedVolumeConnector(LoadingConnector):
    """Encode and its consumers share a directory."""

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        root = vllm_config.ec_transfer_config.get_from_extra_config(STORE_KEY, None)
        if not root:
            raise ValueError(f"ec_connector_extra_config.{STORE_KEY} is missing; name the shared directory")
        self._store = EmbeddingStore(Path(root))

    def obtain(self, request: Any, indices: Sequence[int]) -> Obtained:
        """Scheduler: open the embeddings, and keep them open until the request no longer needs them."""
        return Obtained(missing=[index for index in indices if not self._hold(request, index)])

    def load(self, source: Any) -> torch.Tensor:
        """Worker: read an open file."""
        return load(source)

    def publish(self, identity: str, embedding: torch.Tensor) -> None:
        """Worker: write the file."""
        self._store.publish(identity, embedding)

    def report(self, request: Any) -> dict[str, dict[str, Any]] | None:
        """Scheduler: identity and metadata of each medium; None when a file could not be written."""
        items = super().report(request)
        try:
            return items if items and all(map(self._store.has, items)) else None
        except IdentityError:
            return None

    def _hold(self, request: Any, index: int) -> bool:
        key = (request.request_id, index)
        if key not in self._held:
            opened = self._open(request, index)
            if opened is None:
                return False
            self._held[key] = opened
        return True

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


def needed(request: Any, num_computed_tokens: int) -> Iterator[int]:
    """Indices of the media whose placeholders are not all covered by `num_computed_tokens`."""
    for index, feature in enumerate(request.mm_features):
        position = feature.mm_position
        if position.offset + position.length > num_computed_tokens:
            yield index


def _contract() -> Family:
    return family(os.environ.get(FAMILY, ""))
