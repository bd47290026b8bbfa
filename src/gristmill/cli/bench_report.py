"""What `bench` prints for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gristmill.cli.output import print_json, print_table, say
from gristmill.runtime.errors import InputError
from gristmill.runtime.loadtest.compare import Change
from gristmill.runtime.units import human_bytes

__all__ = ["print_changes", "print_history", "print_runs"]

_COLUMNS = (
    "load",
    "requests",
    "errors",
    "out tok/s",
    "all tok/s",
    "TTFT p50",
    "p99",
    "TPOT p50",
    "p99",
    "ITL p99",
    "max",
)


def print_runs(runs: Sequence[Mapping[str, Any]]) -> None:
    """A line a load, times in milliseconds, then what else is worth knowing."""
    print_table(_COLUMNS, [_cells(run) for run in runs])
    for run in runs:
        for line in _remarks(run):
            say(f"{run['workload']['name']}: {line}")


def print_history(runs: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """The tuning log, the oldest run first."""
    if as_json:
        print_json(list(runs))
        return
    rows = []
    for number, run in enumerate(runs, 1):
        try:
            rows.append(_history_row(run))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(
                f"line {number} of the tuning log",
                found="something else",
                expected="a run of gristmill bench",
            ) from error
    print_table(("time", "version", "server", *_COLUMNS, "options", "note"), rows)


def _history_row(run: Mapping[str, Any]) -> list[str]:
    environment = run["environment"]
    where = environment.get("ref") or environment.get("url") or ""
    told = [environment["time"], environment.get("commit") or environment["gristmill"], where]
    return [*told, *_cells(run), environment.get("serve_options") or "", run.get("note") or ""]


def print_changes(changes: Sequence[Change], *, as_json: bool) -> None:
    """A line a number: before, after, their ratio and whether it means anything."""
    if as_json:
        print_json([{**asdict(change), "ratio": change.ratio} for change in changes])
        return
    rows = [
        [
            change.workload,
            change.metric,
            f"{change.before:,.2f}",
            f"{change.after:,.2f}",
            "" if change.ratio is None else f"{change.ratio:.2f}",
            {"unknown": "? (measure with --repeat)"}.get(change.verdict, change.verdict),
        ]
        for change in changes
    ]
    print_table(("load", "number", "before", "after", "ratio", "verdict"), rows)


def _cells(run: Mapping[str, Any]) -> list[str]:
    ttft, tpot, itl = run["ttft_ms"], run["tpot_ms"], run["itl_ms"]
    rates = [f"{run[name]:,.0f}" for name in ("output_tokens_per_s", "total_tokens_per_s")]
    times = (ttft["p50"], ttft["p99"], tpot["p50"], tpot["p99"], itl["p99"], itl["max"])
    return [run["workload"]["name"], str(run["requests"]), str(run["errors"]), *rates, *map(_time, times)]


def _time(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    return f"{milliseconds:,.1f}" if milliseconds < 100 else f"{milliseconds:,.0f}"


def _remarks(run: Mapping[str, Any]) -> list[str]:
    remarks = [f"the client took {run['client_cpu_share']:.0%} of a processor"]
    if run["goodput_rps"] is not None:
        kept = run["service_level"]["kept"]
        remarks.append(f"goodput {run['goodput_rps']:.2f} requests/s, {kept} of {run['requests']} in time")
    if run["cost_per_million_tokens"] is not None:
        remarks.append(f"{run['cost_per_million_tokens']:.4f} for a million tokens")
    if resident := run["environment"].get("resident_bytes"):
        remarks.append(f"the server held {human_bytes(resident)}")
    if run["tokens_counted_by"] != "usage":
        remarks.append("the server tells no usage: pieces of text were counted as tokens")
    for kind, detail in run["first_errors"].items():
        remarks.append(f"{run['errors_by_kind'][kind]} x {kind}: {detail}")
    return remarks
