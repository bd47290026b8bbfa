"""The tally of tokens is scraped as prometheus_client's own metrics would be."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gristmill.runtime.server.token_metrics import TokenMetrics

BOUNDS = (0.001, 0.025, 1.0, 5.0)
GAPS = st.sampled_from(BOUNDS) | st.floats(0, 10)


def scrape(registry: CollectorRegistry) -> set[str]:
    lines = generate_latest(registry).decode().splitlines()
    return {line for line in lines if "_created" not in line}


def twin(gaps: Sequence[float], tokens: int) -> set[str]:
    registry = CollectorRegistry()
    counter = Counter("tokens", "Tokens generated.", ["model"], registry=registry)
    histogram = Histogram(
        "gaps", "Between two tokens of an answer.", ["model"], buckets=BOUNDS, registry=registry
    )
    counter.labels("m").inc(tokens)
    for gap in gaps:
        histogram.labels("m").observe(gap)
    if not gaps:
        histogram.labels("m")
    return scrape(registry)


@given(st.lists(GAPS), st.integers(0, 1000))
def test_a_scrape_is_that_of_the_librarys_metrics(gaps: Sequence[float], tokens: int) -> None:
    registry = CollectorRegistry()
    metrics = TokenMetrics("tokens", "gaps", "model", BOUNDS)
    registry.register(metrics)
    for gap in gaps:
        metrics.of("m").observe_gap(gap)
    metrics.of("m").tokens += tokens
    assert scrape(registry) == twin(gaps, tokens)
