"""The router's Prometheus metrics, in a registry of their own."""

from __future__ import annotations

from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mmdisagg_workers.contract import STAGES

from .admission import Admission
from .readiness import Readiness
from .trace import Trace

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class RouterMetrics:
    """What the router counts."""

    def __init__(self, admission: Admission, readiness: Readiness) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "mmdisagg_router_requests",
            "Requests by path and outcome.",
            ("path", "outcome"),
            registry=self._registry,
        )
        self._stage_seconds = Histogram(
            "mmdisagg_router_stage_seconds",
            "Time per stage; decode's ends at its first token in a stream.",
            ("stage",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._stage_bytes = Counter(
            "mmdisagg_router_stage_sent_bytes",
            "Bytes of request bodies sent to each stage.",
            ("stage",),
            registry=self._registry,
        )
        self._re_encodes = Counter(
            "mmdisagg_router_re_encodes",
            "Requests whose media were encoded again after an embedding was lost.",
            registry=self._registry,
        )
        self._retries = Counter(
            "mmdisagg_router_retries",
            "Legs sent again after a failure before the first token.",
            registry=self._registry,
        )
        self._media_cache = Counter(
            "mmdisagg_router_media_cache",
            "Inline media that the router remembered (hit), so that encode was not asked, or not (miss).",
            ("result",),
            registry=self._registry,
        )
        in_flight = Gauge(
            "mmdisagg_router_requests_in_flight", "Requests being served.", registry=self._registry
        )
        in_flight.set_function(lambda: admission.in_flight)
        limit = Gauge(
            "mmdisagg_router_requests_in_flight_limit",
            "Requests that may be served at once; above it the outcome is overloaded.",
            registry=self._registry,
        )
        limit.set(admission.limit)
        engines = Gauge(
            "mmdisagg_router_engines",
            "Engines that serve new requests; all 0 while no complete set is known.",
            ("role",),
            registry=self._registry,
        )
        for role in STAGES:
            engines.labels(role).set_function(partial(readiness.count, role))

    def record(self, trace: Trace, outcome: str) -> None:
        """Count a finished request."""
        self._requests.labels(trace.path, outcome).inc()
        for stage, seconds in trace.seconds.items():
            self._stage_seconds.labels(stage).observe(seconds)
        for stage, size in trace.sent.items():
            self._stage_bytes.labels(stage).inc(size)
        if trace.looked_up:
            self._media_cache.labels("hit").inc(trace.remembered)
            self._media_cache.labels("miss").inc(trace.looked_up - trace.remembered)
        if trace.re_encodes:
            self._re_encodes.inc(trace.re_encodes)
        if trace.retries:
            self._retries.inc(trace.retries)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)
