"""What changed between two measurements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from gristmill.runtime.errors import InputError

__all__ = ["Change", "compare_runs", "load_runs"]

_METRICS = (
    ("output_tokens_per_s", None, True),
    ("total_tokens_per_s", None, True),
    ("requests_per_s", None, True),
    ("goodput_rps", None, True),
    ("ttft_ms", "p50", False),
    ("ttft_ms", "p99", False),
    ("tpot_ms", "p50", False),
    ("tpot_ms", "p99", False),
    ("itl_ms", "p99", False),
    ("itl_ms", "max", False),
    ("e2e_ms", "p50", False),
    ("errors", None, False),
    ("cost_per_million_tokens", None, False),
    ("client_cpu_share", None, False),
)
"""Name, percentile, and whether more is better."""


@dataclass(frozen=True, slots=True)
class Change:
    """One number of one workload, before and after; means of the repeats.

    `verdict` is better or worse where the repeats of both sides do not overlap, noise where they do, and
    unknown where a side was measured once.
    """

    workload: str
    metric: str
    before: float
    after: float
    verdict: str

    @property
    def ratio(self) -> float | None:
        """After over before."""
        return self.after / self.before if self.before else None


def load_runs(path: Path) -> list[dict[str, Any]]:
    """The runs that `bench --output` or `--json` wrote. Raises InputError."""
    expected = "what gristmill bench --output writes"
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"--compare {path}", found="no such file") from error
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"--compare {path}", found=str(error), expected=expected) from error
    runs = read if isinstance(read, list) else [read]
    if not runs or not all(isinstance(run, dict) and _name(run) for run in runs):
        raise InputError(f"--compare {path}", found="something else", expected=expected)
    return runs


def compare_runs(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[Change]:
    """Every number of the workloads that both have. Raises InputError if there is none."""
    olds, news = _by_workload(before), _by_workload(after)
    common = [name for name in olds if name in news]
    if not common:
        raise InputError(
            "nothing to compare",
            found=f"workloads {'; '.join(news)}",
            expected=f"one of {'; '.join(olds)}",
        )
    changes = []
    for name in common:
        for metric, percentile, more_is_better in _METRICS:
            old = _values(olds[name], metric, percentile)
            new = _values(news[name], metric, percentile)
            if old and new:
                label = f"{metric} {percentile}" if percentile else metric
                verdict = _verdict(old, new, more_is_better=more_is_better)
                changes.append(Change(name, label, fmean(old), fmean(new), verdict))
    return changes


def _name(run: Mapping[str, Any]) -> str | None:
    workload = run.get("workload")
    return workload.get("name") if isinstance(workload, dict) else None


def _by_workload(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        grouped.setdefault(str(_name(run)), []).append(run)
    return grouped


def _values(runs: Sequence[Mapping[str, Any]], metric: str, percentile: str | None) -> list[float]:
    found = [run.get(metric) for run in runs]
    if percentile is not None:
        found = [value.get(percentile) if isinstance(value, dict) else None for value in found]
    return [float(value) for value in found if isinstance(value, int | float)]


def _verdict(old: Sequence[float], new: Sequence[float], *, more_is_better: bool) -> str:
    if old == new:
        return "same"
    if len(old) < 2 or len(new) < 2:
        return "unknown"
    if min(new) > max(old):
        return "better" if more_is_better else "worse"
    if max(new) < min(old):
        return "worse" if more_is_better else "better"
    return "noise"
