"""Latency, throughput and cost of what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.runtime.loadtest.records import Record
from gristmill.runtime.loadtest.replay import Measurement

__all__ = ["ServiceLevel", "summarize"]

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """What a request must keep to count for goodput, in milliseconds; None is no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def is_set(self) -> bool:
        """False if nothing is asked for."""
        return self.ttft_ms is not None or self.tpot_ms is not None

    def keeps(self, record: Record) -> bool:
        """True if an answer was as fast as it must be."""
        return (
            record.error is None
            and _within(record.ttft, self.ttft_ms)
            and (record.tpot is None or _within(record.tpot, self.tpot_ms))
        )


def summarize(
    measurement: Measurement, level: ServiceLevel | None = None, price_per_hour: float | None = None
) -> dict[str, Any]:
    """The numbers of one load; milliseconds, a second, and cost for a million tokens read and written.

    Latencies and tokens are those of requests without an error. `goodput_rps` is None without a service
    level, `cost_per_million_tokens` without a price. `client_cpu_share` is of one processor.
    """
    level = level or ServiceLevel()
    good = [record for record in measurement.records if record.error is None]
    failed = [record for record in measurement.records if record.error is not None]
    seconds = max(measurement.duration_s, 1e-9)
    output = sum(record.output_tokens for record in good)
    total = output + sum(record.prompt_tokens for record in good)
    cost = None if price_per_hour is None else price_per_hour * seconds / _SECONDS_PER_HOUR * 1e6
    kept = sum(map(level.keeps, good))
    return {
        "workload": measurement.workload.as_json(),
        "requests": len(measurement.records),
        "errors": len(failed),
        "errors_by_kind": dict(Counter(record.error for record in failed)),
        "first_errors": _first_details(failed),
        "interrupted": measurement.interrupted,
        "duration_s": measurement.duration_s,
        "requests_per_s": len(good) / seconds,
        "prompt_tokens": total - output,
        "cached_prompt_tokens": sum(record.cached_tokens for record in good),
        "output_tokens": output,
        "tokens_counted_by": "usage" if all(record.counted for record in good) else "pieces of text",
        "output_tokens_per_s": output / seconds,
        "total_tokens_per_s": total / seconds,
        "ttft_ms": _percentiles(record.ttft for record in good),
        "tpot_ms": _percentiles(record.tpot for record in good),
        "itl_ms": _percentiles(gap for record in good for gap in record.gaps),
        "e2e_ms": _percentiles(record.ended - record.started for record in good),
        "goodput_rps": kept / seconds if level.is_set else None,
        "service_level": {"ttft_ms": level.ttft_ms, "tpot_ms": level.tpot_ms, "kept": kept},
        "cost_per_million_tokens": None if cost is None or not total else cost / total,
        "client_cpu_share": measurement.client_cpu_s / seconds,
    }


def _within(seconds: float | None, limit_ms: float | None) -> bool:
    return limit_ms is None or (seconds is not None and 1000 * seconds <= limit_ms)


def _percentiles(seconds: Iterable[float | None]) -> dict[str, float | None]:
    values = [1000 * value for value in seconds if value is not None]
    if not values:
        return dict.fromkeys(("p50", "p95", "p99", "max"))
    p50, p95, p99 = np.percentile(values, (50, 95, 99)).tolist()
    return {"p50": p50, "p95": p95, "p99": p99, "max": max(values)}


def _first_details(failed: Sequence[Record]) -> dict[str, str]:
    """What was said the first time that each kind of error occurred."""
    return {str(record.error): record.detail for record in reversed(failed)}
