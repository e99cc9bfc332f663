"""Counters on their way from the scheduler to /metrics."""

from types import SimpleNamespace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import generate_latest as exposed

from mmdisagg_workers.engine.embedding_metrics import EmbeddingStats
from mmdisagg_workers.engine.encoder_cache import DecodeGuardConnector


def test_counts_are_taken_once():
    stats = EmbeddingStats()
    stats.add("loads")
    stats.add("loads", 2)
    assert stats.take().data == {"loads": 3}
    assert stats.is_empty()


def test_counts_of_several_reports_add_up():
    total = EmbeddingStats({"loads": 1}).aggregate(EmbeddingStats({"loads": 2, "missing": 1}))
    assert total.reduce() == {"loads": 3, "missing": 1}


def test_prometheus_shows_them_per_engine():
    registry = CollectorRegistry()

    def counter(name, text, labelnames):
        return Counter(name, text, labelnames=labelnames, registry=registry)

    types = {Counter: counter, Gauge: Gauge, Histogram: Histogram}
    arguments = (SimpleNamespace(ec_transfer_config=None), types, ["model_name", "engine"], {0: ["m", "0"]})
    metrics = DecodeGuardConnector.build_prom_metrics(*arguments)
    metrics.observe(DecodeGuardConnector.build_ec_connector_stats({"loads": 2}).data)
    text = exposed(registry).decode()
    assert 'mmdisagg_embedding_loads_total{engine="0",model_name="m"} 2.0' in text
    assert 'mmdisagg_embedding_missing_total{engine="0",model_name="m"} 0.0' in text
