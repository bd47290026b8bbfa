"""What the engine benchmark prints and records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.runtime.doctor import Speeds
from tests.benchmarks.roofline import Ceiling
from tests.benchmarks.table import result_row, table_line
from tests.benchmarks.workloads import BEST_PEER, Workload

__all__ = ["Measured", "json_rows", "print_limits", "print_profile", "print_speeds"]

_FIRST, _WIDTH = 19, 16


@dataclass(frozen=True, slots=True)
class Measured:
    """One row: tokens per second of ours and each peer, and what limits ours.

    `bytes_per_token` has an entry for every system, ours first; `load` is the
    load average when the row ended.
    """

    workload: Workload
    ours: float
    peers: Mapping[str, float]
    bytes_per_token: Mapping[str, float]
    multiply_adds_per_token: float
    ceiling: Ceiling
    speeds: Speeds
    load: float

    @property
    def share(self) -> float:
        """The part of the ceiling that ours reaches."""
        return self.ours / self.ceiling.tokens_per_second

    @property
    def bound_peer(self) -> tuple[str, float] | None:
        """The peer that the row's limit is against, and its speed."""
        limit = self.workload.limit
        if limit is None or not self.peers:
            return None
        name = max(self.peers, key=self.peers.__getitem__) if limit.against == BEST_PEER else limit.against
        return name, self.peers[name]


def print_speeds(measured: Measured, *, first: bool) -> None:
    """A line of tokens per second; before the first, the heading."""
    if first:
        columns = [column for name in measured.peers for column in (name, "ratio")]
        print("\n" + _line(("tok/s", "ours", *columns, "wanted", "load")))
    cells = [measured.workload.name, _number(measured.ours)]
    for value in measured.peers.values():
        cells += [_number(value), f"{measured.ours / value:.2f}"]
    print(_line((*cells, _wanted(measured), f"{measured.load:.1f}")), flush=True)


def print_limits(rows: Sequence[Measured]) -> None:
    """Bytes that each system must move for a token, and ours against the machine."""
    names = list(rows[0].bytes_per_token)
    print("\n" + _line(("MB a token", *names)))
    for row in rows:
        print(_line((row.workload.name, *(f"{size / 1e6:.2f}" for size in row.bytes_per_token.values()))))
    columns = ("GB/s", "int8 G/s", "bf16 G/s", "M mul-adds/tok", "ceiling tok/s", "bound by", "reached")
    print("\n" + _line((f"on {rows[0].speeds.instruction_set}", *columns)))
    for row in rows:
        speeds = row.speeds
        print(
            _line(
                (
                    row.workload.name,
                    f"{speeds.gigabytes:.1f}",
                    f"{speeds.multiply_adds['int8'] / 1e9:.0f}",
                    f"{speeds.multiply_adds['bfloat16'] / 1e9:.0f}",
                    f"{row.multiply_adds_per_token / 1e6:.0f}",
                    _number(row.ceiling.tokens_per_second),
                    row.ceiling.bound,
                    f"{row.share:.0%}",
                )
            )
        )


def print_profile(seconds: Mapping[str, float]) -> None:
    """The time of all steps by operation."""
    total = sum(seconds.values()) or 1.0
    print("\n" + _line(("operation", "seconds", "share")))
    for name, value in sorted(seconds.items(), key=lambda entry: -entry[1]):
        print(_line((name, f"{value:.3f}", f"{value / total:.1%}")))


def json_rows(measured: Measured, command: str) -> list[dict[str, Any]]:
    """One entry a peer, one for the machine's limit, one a system for its bytes."""
    name, bound = measured.workload.name, measured.bound_peer
    limit = measured.workload.limit

    def of_peer(peer: str, value: float) -> dict[str, Any]:
        wanted = limit.ratio if limit is not None and bound is not None and bound[0] == peer else None
        return result_row(name, measured.ours, peer, value, "tok/s", command, wanted)

    rows = [of_peer(peer, value) for peer, value in measured.peers.items()]
    most = measured.ceiling
    rows.append(
        result_row(name, measured.ours, f"{most.bound} limit", most.tokens_per_second, "tok/s", command)
    )
    ours, *others = measured.bytes_per_token.items()
    rows += [
        result_row(f"{name}: bytes a token", ours[1], peer, value, "B", command) for peer, value in others
    ]
    rows.append(result_row(f"{name}: bandwidth", measured.speeds.gigabytes, "", None, "GB/s", command))
    rows += [
        result_row(f"{name}: {form} multiply-adds", rate, "", None, "1/s", command)
        for form, rate in measured.speeds.multiply_adds.items()
    ]
    return rows


def _wanted(measured: Measured) -> str:
    limit, bound = measured.workload.limit, measured.bound_peer
    if limit is None or bound is None:
        return ""
    met = "met" if measured.ours >= limit.ratio * bound[1] else "MISSED"
    return f">= {limit.ratio:g} {met}"


def _number(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _line(cells: Sequence[str]) -> str:
    return table_line(cells, _FIRST, _WIDTH)
