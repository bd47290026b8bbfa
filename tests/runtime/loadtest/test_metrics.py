"""Numbers of measured requests, against arithmetic by hand."""

from __future__ import annotations

import pytest

from gristmill.runtime.loadtest.metrics import ServiceLevel, summarize
from gristmill.runtime.loadtest.records import Record
from gristmill.runtime.loadtest.replay import Measurement
from gristmill.runtime.loadtest.workload import Workload


def answered(started: float, *texts: float, prompt: int = 10, tokens: int | None = None) -> Record:
    """A request whose pieces of text came at these times."""
    record = Record(started)
    for now in texts:
        record.text_at(now)
    record.prompt_tokens, record.counted, record.ended = prompt, True, texts[-1]
    record.output_tokens = len(texts) if tokens is None else tokens
    return record


@pytest.fixture
def measurement() -> Measurement:
    """Two answers and a failure within 4 s."""
    failed = Record(0.0, error="http 429", detail="too many")
    records = [answered(0.0, 0.1, 0.2, 0.4), answered(1.0, 1.5, 3.5), failed]
    return Measurement(Workload(concurrency=2), records, duration_s=4.0, client_cpu_s=0.2)


def test_latencies_are_those_of_answered_requests(measurement) -> None:
    run = summarize(measurement)
    assert run["ttft_ms"]["p50"] == pytest.approx(300)
    assert run["ttft_ms"]["max"] == pytest.approx(500)
    assert run["tpot_ms"]["max"] == pytest.approx(2000)
    assert run["tpot_ms"]["p50"] == pytest.approx((150 + 2000) / 2)
    assert run["itl_ms"]["p50"] == pytest.approx(200)  # of 100, 200 and 2,000
    assert run["e2e_ms"]["max"] == pytest.approx(2500)


def test_throughput_counts_tokens_by_the_whole_time(measurement) -> None:
    run = summarize(measurement)
    assert run["output_tokens_per_s"] == pytest.approx(5 / 4)
    assert run["total_tokens_per_s"] == pytest.approx(25 / 4)
    assert run["client_cpu_share"] == pytest.approx(0.05)


def test_errors_are_counted_by_kind(measurement) -> None:
    run = summarize(measurement)
    assert (run["requests"], run["errors"]) == (3, 1)
    assert run["errors_by_kind"] == {"http 429": 1}
    assert run["first_errors"] == {"http 429": "too many"}


def test_goodput_counts_what_kept_the_service_level(measurement) -> None:
    assert summarize(measurement)["goodput_rps"] is None
    assert summarize(measurement, ServiceLevel(ttft_ms=600))["goodput_rps"] == pytest.approx(2 / 4)
    assert summarize(measurement, ServiceLevel(ttft_ms=600, tpot_ms=200))["goodput_rps"] == pytest.approx(
        1 / 4
    )


def test_cost_is_for_a_million_tokens_read_and_written(measurement) -> None:
    assert summarize(measurement)["cost_per_million_tokens"] is None
    cost = summarize(measurement, price_per_hour=3.6)["cost_per_million_tokens"]
    assert cost == pytest.approx(3.6 / 3600 * 4 / 25 * 1e6)


def test_time_a_token_goes_by_the_server_s_count_not_by_pieces() -> None:
    record = answered(0.0, 1.0, 2.0, tokens=5)
    assert record.tpot == pytest.approx(0.25)


def test_nothing_measured_has_no_percentiles() -> None:
    run = summarize(Measurement(Workload(concurrency=1)))
    assert run["ttft_ms"] == {"p50": None, "p95": None, "p99": None, "max": None}
    assert run["output_tokens_per_s"] == 0
