"""Prometheus metrics: vLLM's names under our prefix, in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gristmill.runtime.engine_stats import EngineStats
from gristmill.runtime.server.records import RequestRecord
from gristmill.runtime.server.token_metrics import TokenMetrics

__all__ = ["Metrics"]

_PREFIX = "gristmill:"
_MODEL = "model_name"
_LABELS = [_MODEL]
_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
_REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
_LENGTH_BUCKETS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


class Metrics:
    """All metrics of one server.

    Counters count answers: a request with n = 3 adds three outcomes, and accepted
    answers are those that have ended and those that run or wait. Prompt tokens
    count once for each prompt, as in `usage`. HTTP requests are counted apart, by
    status and by the code of the error, with what was refused before it came to a model.
    Gauges are read at the moment of the scrape, so they can't stand still.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens accepted.")
        self.accepted = self._counter("request_accepted", "Answers that were queued.")
        self.request_success = self._counter(
            "request_success",
            "Answers that have ended, by reason: stop, length, abort, error.",
            "finished_reason",
        )
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "From the request to its first token.", _FIRST_TOKEN_BUCKETS
        )
        self.tokens = TokenMetrics(
            f"{_PREFIX}generation_tokens", f"{_PREFIX}inter_token_latency_seconds", _MODEL, _TOKEN_BUCKETS
        )
        self.registry.register(self.tokens)
        self.per_output_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean time between two tokens of an ended answer.",
            _TOKEN_BUCKETS,
        )
        self.end_to_end = self._histogram(
            "e2e_request_latency_seconds", "From the request to the answer's end.", _REQUEST_BUCKETS
        )
        self.queue = self._histogram(
            "request_queue_time_seconds", "From the request to its first step.", _REQUEST_BUCKETS
        )
        self.prefill = self._histogram(
            "request_prefill_time_seconds", "From the first step to the first token.", _REQUEST_BUCKETS
        )
        self.decode = self._histogram(
            "request_decode_time_seconds", "From the first token to the last.", _REQUEST_BUCKETS
        )
        self.prompt_length = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _LENGTH_BUCKETS)
        self.answer_length = self._histogram(
            "request_generation_tokens", "Tokens of an ended answer.", _LENGTH_BUCKETS
        )
        self.prefix_divergence = self._counter(
            "prefix_divergence",
            "Long prompts whose text was cached and not found, by what they differ in from a recent one.",
            "cause",
        )
        self.http_open = Gauge(f"{_PREFIX}http_requests_open", "HTTP requests open.", registry=self.registry)
        self._http_ended = Counter(
            f"{_PREFIX}http_requests",
            "HTTP requests that have ended, by handler, status and error code.",
            ["handler", "status", "code"],
            registry=self.registry,
        )

    def watch(self, read: Callable[[], Mapping[str, EngineStats]]) -> None:
        """Add the gauges, read from each model's engine."""
        self.registry.register(_EngineGauges(read))

    def http_ended(self, record: RequestRecord) -> None:
        """Count a request by its outcome."""
        self._http_ended.labels(record.handler, record.status, record.error).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}{name}", text, [*_LABELS, *labels], registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"{_PREFIX}{name}", text, _LABELS, buckets=buckets, registry=self.registry)


class _EngineGauges:
    """A collector that asks the engines at every scrape."""

    def __init__(self, read: Callable[[], Mapping[str, EngineStats]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        stats = self._read()
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=_LABELS)
            for model, engine in stats.items():
                gauge.add_metric([model], value(engine))
            yield gauge
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=_LABELS)
            for model, engine in stats.items():
                counter.add_metric([model], value(engine))
            yield counter


_Reading = tuple[str, str, Callable[[EngineStats], float]]

_GAUGES: tuple[_Reading, ...] = (
    ("num_requests_running", "Answers in progress.", lambda stats: stats.num_running),
    ("num_requests_waiting", "Answers in the queue.", lambda stats: stats.num_waiting),
    ("num_tokens_waiting", "Prompt tokens in the queue.", lambda stats: stats.num_waiting_tokens),
    ("kv_cache_usage_perc", "Share of the KV cache in use, 1 is all.", lambda stats: stats.kv_cache_usage),
    ("num_cached_blocks", "Blocks that hold a prefix for later.", lambda stats: stats.num_cached_blocks),
)
_COUNTERS: tuple[_Reading, ...] = (
    ("num_preemptions", "Requests that gave their cache back.", lambda stats: stats.num_preemptions),
    (
        "num_recomputed_tokens",
        "Tokens computed again after a preemption.",
        lambda stats: stats.num_recomputed,
    ),
    ("prefix_cache_queries", "Prompt tokens looked up.", lambda stats: stats.prefix_queries),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda stats: stats.prefix_hits),
)
