"""Counters of the embedding handoff at an engine's `/metrics`.

vLLM 0.32.0 has none of its own. They are counted in the scheduler process, where the decisions fall, and
travel to the API server through the EC connector's stats hooks:

    mmdisagg_embedding_encodes_total   embeddings computed by this engine's vision tower
    mmdisagg_embedding_loads_total     embeddings taken from the handoff
    mmdisagg_embedding_missing_total   requests that failed because an embedding could not be had
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
}


@dataclass
class EmbeddingStats(ECConnectorStats):
    """What happened since the last report: counter name to increment."""

    data: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, amount: int = 1) -> None:
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

    def reduce(self) -> dict[str, int | float]:
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
