"""What the operator counts, for Prometheus."""

from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .kinds import Kind
from .queue import K, Result, Work


@dataclass
class OperatorMetrics:
    """The operator's metrics, in a registry of their own."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        registry = self.registry
        self.rounds = Counter(
            "mmdisagg_operator_reconciles", "Rounds, by how they ended", ("result",), registry=registry
        )
        self.seconds = Histogram(
            "mmdisagg_operator_reconcile_seconds", "Duration of a round", registry=registry
        )
        self.writes = Counter(
            "mmdisagg_operator_api_writes",
            "Requests that change something",
            ("verb", "kind"),
            registry=registry,
        )
        self.leader = Gauge(
            "mmdisagg_operator_leader", "1 while this operator holds the Lease", registry=registry
        )

    def wrote(self, verb: str, kind: Kind) -> None:
        """Count a write."""
        self.writes.labels(verb, kind.name).inc()

    def watch_queue(self, known: Callable[[], float], waiting: Callable[[], float]) -> None:
        """Show how many deployments are known, and how many wait to be worked on."""
        Gauge(
            "mmdisagg_operator_deployments", "Deployments that are known", registry=self.registry
        ).set_function(known)
        Gauge(
            "mmdisagg_operator_queue", "Deployments that wait to be worked on", registry=self.registry
        ).set_function(waiting)

    def counted(self, work: Work[K]) -> Work[K]:
        """Return the same work, with its rounds and their durations counted."""

        async def counted_work(key: K) -> Result:
            """Work, and count."""
            with self.seconds.time():
                try:
                    ended = await work(key)
                except Exception:
                    self.rounds.labels("error").inc()
                    raise
            self.rounds.labels("gone" if ended.gone else "retry" if ended.failed else "done").inc()
            return ended

        return counted_work

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)
