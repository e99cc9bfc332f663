"""Counters of the embedding handoff at an engine's `/metrics`, as `mmdisagg_embedding_<name>_total`.

vLLM 0.32.0 has none of its own. They travel from the scheduler process to the API server through the EC
connector's stats hooks, with the steps of the engine: an idle engine shows what its last step knew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import Counter
from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats

COUNTERS: Final = {
    "encodes": "Embeddings computed by this engine's vision tower.",
    "loads": "Embeddings taken from the encoder cache handoff.",
    "missing": "Requests that failed because an embedding could not be had.",
    "hits": "Embeddings needed by a request that were in this engine's memory, or on their way to it.",
    "misses": "Embeddings needed by a request that had to be fetched from encode.",
    "refetches": "Embeddings fetched once more, because they had been evicted here.",
    "fetched_bytes": "Bytes of embeddings fetched from encode.",
    "fetch_seconds": "Seconds that these fetches took, connecting included.",
    "fetch_failures": "Embeddings that could not be fetched from encode.",
    "published": "Embeddings put into encode's store.",
    "unpublished": "Embeddings that found no room in encode's store, because all of it was kept or read.",
    "held_back": "Encode requests that waited for room in the store, because all of it was reserved.",
    "evictions": "Embeddings that gave way to others, in encode's store or in a consumer's memory.",
    "serves": "Embeddings sent to consumers.",
    "serve_misses": "Embeddings that consumers asked for and encode's store did not have.",
    "served_bytes": "Bytes of embeddings sent to consumers.",
    "serve_seconds": "Seconds that sending them took.",
    "refused_connections": "Connections to the embedding port that were refused or broke.",
}


@dataclass
class EmbeddingStats(ECConnectorStats):
    """What happened since the last report: counter name to increment."""

    data: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, amount: float = 1) -> None:
        """Count an event."""
        self.data[name] = self.data.get(name, 0) + amount

    def take(self) -> EmbeddingStats:
        """Return what was counted and start again at zero."""
        taken = EmbeddingStats(dict(self.data))
        self.reset()
        return taken

    def reset(self) -> None:
        """Start again at zero."""
        self.data.clear()

    def aggregate(self, other: EmbeddingStats) -> EmbeddingStats:
        """Add the counts of `other`."""
        for name, amount in other.data.items():
            self.add(name, amount)
        return self

    def reduce(self) -> dict[str, float]:
        """Return the counts for vLLM's periodic log line."""
        return dict(self.data)

    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not self.data


class EmbeddingPromMetrics(ECConnectorPromMetrics):
    """The counters in the API server's Prometheus registry, one series per engine."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters: dict[tuple[int, str], Counter] = {}
        for name, text in COUNTERS.items():
            counter = self._counter_cls(f"mmdisagg_embedding_{name}", text, labelnames=labelnames)
            for engine, values in per_engine_labelvalues.items():
                self._counters[engine, name] = counter.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what one engine reported."""
        for name, amount in transfer_stats_data.items():
            self._counters[engine_idx, name].inc(amount)
