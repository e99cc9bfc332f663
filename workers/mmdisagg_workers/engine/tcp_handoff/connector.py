"""vLLM's encoder-cache connector over TCP: `TcpConnector`, on encode and on its consumer.

`ec_connector_extra_config`:

    capacity   bytes of host memory for embeddings: encode's store, or what a consumer has fetched
    host       encode: IP address that consumers connect to
    port       encode: TCP port

The stage token comes by environment, as for the guard.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole

from mmdisagg_workers.contract import STAGE_TOKEN, IdentityError, check_identity
from mmdisagg_workers.engine.embedding_metrics import EmbeddingStats
from mmdisagg_workers.engine.encoder_cache import LoadingConnector, Obtained
from mmdisagg_workers.engine.settings import GEOMETRY, geometry_from_json

from .arrivals import Arrival, Arrivals, State, Wanted
from .client import HOST, PORT, RESERVATION, SIZE, Peer, reservation_of
from .counters import CounterReader, Counters
from .journal import Event, Journal, JournalReader
from .mapped_file import meeting_place
from .memory import ArenaView, MappedEmbedding
from .protocol import ITEM_BYTES, HandoffError, Layout
from .reservations import Admission
from .server import EmbeddingServer
from .store import HostStore

logger = logging.getLogger(__name__)

ENCODE_COUNTERS: Final = (
    "published",
    "unpublished",
    "evictions",
    "serves",
    "serve_misses",
    "served_bytes",
    "serve_seconds",
    "refused_connections",
)
"""What encode's worker process counts for its scheduler."""


@dataclass(frozen=True)
class _Held:
    """An arrival in use by one medium of one request."""

    arrival: Arrival
    arrivals: Arrivals

    @property
    def source(self) -> MappedEmbedding:
        return self.arrival.source

    def close(self) -> None:
        self.arrivals.give_back(self.arrival)


class TcpConnector(LoadingConnector):
    """Encode (`ec_producer`) serves embeddings from memory; consumers (`ec_consumer`) fetch them."""

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        settings = vllm_config.ec_transfer_config
        self._capacity = int(settings.get_from_extra_config("capacity", 0))
        if self._capacity <= 0:
            raise ValueError("ec_connector_extra_config.capacity is missing; give a number of bytes")
        self._width = geometry_from_json(os.environ.get(GEOMETRY, "")).embedding_width
        self._dtype = str(vllm_config.model_config.dtype).removeprefix("torch.")
        if self._dtype not in ITEM_BYTES:
            raise ValueError(
                f"models of dtype {self._dtype} are not served over Tcp; use {sorted(ITEM_BYTES)}"
            )
        self._counter_file = meeting_place(settings.engine_id)
        self._journal_file = self._counter_file.with_name(f"{self._counter_file.name}-journal")
        self._arena_view = ArenaView()
        self._server: EmbeddingServer | None = None
        self._store: HostStore | None = None
        if self.is_producer:
            option = settings.get_from_extra_config
            self._address = Peer.from_entry({HOST: option("host", None), PORT: option("port", None)})
        self._counted: Callable[[], dict[str, float]] = dict
        if role is ECConnectorRole.SCHEDULER and self.is_consumer:
            self._arrivals = Arrivals(self._capacity, os.environ[STAGE_TOKEN])
            self._counted = self._arrivals.take_counts
        elif role is ECConnectorRole.SCHEDULER:
            self._counted = CounterReader(self._counter_file, ENCODE_COUNTERS).take
            self._admission = Admission(self._capacity)
            self._events = JournalReader(self._journal_file)

    def start_worker_services(self) -> None:
        """Worker: open encode's port. The first of several workers does; all have the same embeddings."""
        if not self.is_producer or self._vllm_config.parallel_config.rank:
            return
        counters = Counters(self._counter_file, ENCODE_COUNTERS)
        self._journal = Journal(self._journal_file)
        self._store = HostStore(self._capacity, counters.add)
        self._server = EmbeddingServer(
            self._address.host,
            self._address.port,
            os.environ[STAGE_TOKEN],
            self._store,
            counters.add,
            lambda number: self._journal.write(Event.ENDED, number),
        )
        host, port = self._address.host, self._address.port
        logger.info("embedding port: %s:%d, room for %d bytes", host, port, self._capacity)

    def shutdown(self) -> None:
        """Worker: close encode's port."""
        if self._server is not None:
            self._server.close()

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Scheduler: encode's request waits until the store has room that is not reserved."""
        if self.is_producer and not self._admit(request):
            return False
        return super().ensure_cache_available(request, num_computed_tokens)

    def _admit(self, request: Any) -> bool:
        self._read_events()
        waited = self._admission.waits(request.request_id)
        sizes = {feature.identifier: self._layout(feature).size for feature in request.mm_features}
        try:
            numbers = self._admission.admit(request.request_id, sizes)
        except HandoffError as error:
            self._fail(request.request_id, [str(error)])
            return False
        if numbers is None:
            if not waited:
                self._stats.add("held_back")
            return False
        self._plan.reserved.update(numbers)
        return True

    def _read_events(self) -> None:
        for event, number in self._events.take():
            if event is Event.PUBLISHED:
                self._admission.confirm(number)
            else:
                self._admission.end(number)

    def obtain(self, request: Any, indices: Sequence[int]) -> Obtained:
        """Scheduler: hold and fetch the embeddings of some media, all together."""
        absent = [i for i in indices if (request.request_id, i) not in self._held]
        try:
            taken = self._arrivals.take([self._wanted(request, i) for i in absent]) if absent else []
        except (HandoffError, IdentityError) as error:
            logger.warning("request %s: %s", request.request_id, error)
            return Obtained(missing=absent)
        if taken is None:
            # Holding some while waiting for room for others could block two requests for ever.
            self._let_go_of_all(request)
            return Obtained(coming=True)
        self._release(request, absent)
        for index, arrival in zip(absent, taken, strict=True):
            self._held[request.request_id, index] = _Held(arrival, self._arrivals)
        states = {i: self._held[request.request_id, i].arrival.state for i in indices}
        missing = [i for i, state in states.items() if state is State.FAILED]
        return Obtained(missing, State.COMING in states.values())

    def load(self, source: Any) -> torch.Tensor:
        """Worker: copy what arrived; its memory will be used again."""
        from vllm.platforms import current_platform

        return self._arena_view.tensor(source).to(current_platform.device_type, copy=True)

    def start_save_caches(self, **kwargs: Any) -> None:
        """Worker: keep what this step's requests will report, and publish it where it is cached."""
        if self._store is not None:
            self._store.reserve(self._get_connector_metadata().reserved)
        super().start_save_caches(**kwargs)

    def publish(self, identity: str, embedding: torch.Tensor) -> None:
        """Worker: copy an embedding to the store; the first of several workers does."""
        if self._store is None:
            return
        # Consumers expect the model's own type; vLLM would convert the embedding to it anyway.
        converted = embedding.to(getattr(torch, self._dtype))
        if converted.dim() != 2:
            raise ValueError(f"its shape is {tuple(converted.shape)}, not rows and width")
        numbers = self._store.publish(check_identity(identity), converted)
        if numbers is None:
            raise OSError(f"all {self._capacity} bytes are reserved or being read")
        for number in numbers:
            self._journal.write(Event.PUBLISHED, number)

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """Scheduler: as any; a consumer ends the reservations that it had no need of."""
        if self.is_consumer:
            self._release(request, range(len(request.mm_features)))
        return super().request_finished(request)

    def report(self, request: Any) -> dict[str, dict[str, Any]] | None:
        """Scheduler: identity and metadata of each medium, and where its embedding lies.

        None unless all of them are published: without them the answer is a failure of this encode leg.
        """
        items = super().report(request) or {}
        self._read_events()
        numbers = self._admission.finish(request.request_id)
        if numbers.keys() != items.keys():
            return None
        for feature in request.mm_features:
            place = {HOST: self._address.host, PORT: self._address.port, SIZE: self._layout(feature).size}
            items[feature.identifier].update(place, **{RESERVATION: numbers[feature.identifier]})
        return items or None

    def get_ec_connector_stats(self) -> EmbeddingStats | None:
        """Scheduler: counts since the last call, those of the fetching threads or of encode's worker too."""
        for name, amount in self._counted().items():
            self._stats.add(name, amount)
        return super().get_ec_connector_stats()

    def _layout(self, feature: Any) -> Layout:
        return Layout(self._dtype, feature.mm_position.get_num_embeds(), self._width)

    def _wanted(self, request: Any, index: int) -> Wanted:
        feature = request.mm_features[index]
        entry = _entry(request, feature)
        return Wanted(
            check_identity(feature.identifier),
            self._layout(feature),
            Peer.from_entry(entry),
            reservation_of(entry),
        )

    def _release(self, request: Any, indices: Iterable[int]) -> None:
        for feature in (request.mm_features[index] for index in indices):
            entry = _entry(request, feature)
            if number := reservation_of(entry):
                with suppress(HandoffError, IdentityError):
                    identity = check_identity(feature.identifier)
                    self._arrivals.release(identity, Peer.from_entry(entry), number)


def _entry(request: Any, feature: Any) -> Any:
    return (request.ec_transfer_params or {}).get(feature.identifier)
