"""Prometheus metrics: vLLM's names under our prefix, in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gristmill.runtime.engine import EngineRequest, EngineStats
from gristmill.runtime.outputs import OutputDelta

__all__ = ["Metrics", "ModelMetrics"]

_PREFIX = "gristmill:"
_LABELS = ["model_name"]
_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
_REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


class Metrics:
    """All metrics of one server.

    Counters count answers: a request with n = 3 adds three outcomes. Prompt
    tokens count once for each prompt, as in `usage`. Gauges are read at the moment of the
    scrape, so they can't stand still.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.prompt_tokens = Counter(
            f"{_PREFIX}prompt_tokens", "Prompt tokens accepted.", _LABELS, registry=registry
        )
        self.generation_tokens = Counter(
            f"{_PREFIX}generation_tokens", "Tokens generated.", _LABELS, registry=registry
        )
        self.request_success = Counter(
            f"{_PREFIX}request_success",
            "Answers that have ended, by reason: stop, length, abort, error.",
            [*_LABELS, "finished_reason"],
            registry=registry,
        )
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "From the request to its first token.", _FIRST_TOKEN_BUCKETS
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of an answer.", _TOKEN_BUCKETS
        )
        self.end_to_end = self._histogram(
            "e2e_request_latency_seconds", "From the request to the answer's end.", _REQUEST_BUCKETS
        )

    def watch(self, sources: Mapping[str, Callable[[], EngineStats]]) -> None:
        """Add the gauges, read from each model's engine."""
        self.registry.register(_EngineGauges(sources))

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"{_PREFIX}{name}", text, _LABELS, buckets=buckets, registry=self.registry)


class _EngineGauges:
    """A collector that asks the engines at every scrape."""

    def __init__(self, sources: Mapping[str, Callable[[], EngineStats]]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        running = GaugeMetricFamily(f"{_PREFIX}num_requests_running", "Answers in progress.", labels=_LABELS)
        waiting = GaugeMetricFamily(f"{_PREFIX}num_requests_waiting", "Answers in the queue.", labels=_LABELS)
        usage = GaugeMetricFamily(
            f"{_PREFIX}kv_cache_usage_perc", "Share of the KV cache in use, 1 is all.", labels=_LABELS
        )
        preemptions = CounterMetricFamily(
            f"{_PREFIX}num_preemptions", "Requests that gave their cache back.", labels=_LABELS
        )
        for name, read in self._sources.items():
            stats = read()
            running.add_metric([name], stats.num_running)
            waiting.add_metric([name], stats.num_waiting)
            usage.add_metric([name], stats.kv_cache_usage)
            preemptions.add_metric([name], stats.num_preemptions)
        yield from (running, waiting, usage, preemptions)


@dataclass(slots=True)
class _Timing:
    """Monotonic times of one answer."""

    submitted: float
    last_token: float | None = None


@dataclass(slots=True)
class ModelMetrics:
    """Records one model's requests; an `EngineObserver`."""

    metrics: Metrics
    name: str
    _timings: dict[tuple[str, int], _Timing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A counter that is absent until its first event breaks rates and sums.
        self.metrics.prompt_tokens.labels(self.name)
        self.metrics.generation_tokens.labels(self.name)
        for reason in ("stop", "length", "abort", "error"):
            self.metrics.request_success.labels(self.name, reason)

    def submitted(self, request_id: str, request: EngineRequest, now: float) -> None:
        """Count a prompt and start the clocks of its answers."""
        self.metrics.prompt_tokens.labels(self.name).inc(len(request.prompt_token_ids))
        for index in range(request.params.n):
            self._timings[request_id, index] = _Timing(now)

    def progressed(self, deltas: Sequence[OutputDelta], started: float, ended: float) -> None:
        """Record a step's tokens and ends."""
        now = ended
        for delta in deltas:
            timing = self._timings[delta.request_id, delta.index]
            if delta.token_ids:
                self._record_token(timing, len(delta.token_ids), now)
            if delta.finish_reason is not None:
                self.metrics.request_success.labels(self.name, delta.finish_reason).inc()
                self.metrics.end_to_end.labels(self.name).observe(now - timing.submitted)
                del self._timings[delta.request_id, delta.index]

    def _record_token(self, timing: _Timing, count: int, now: float) -> None:
        self.metrics.generation_tokens.labels(self.name).inc(count)
        if timing.last_token is None:
            self.metrics.first_token.labels(self.name).observe(now - timing.submitted)
        else:
            self.metrics.inter_token.labels(self.name).observe(now - timing.last_token)
        timing.last_token = now
