"""Traces of real services: when requests came, how long they were, what they shared."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gristmill.runtime.errors import InputError

__all__ = ["PREFIX_BLOCK", "TraceRow", "fit_rows", "read_trace"]

PREFIX_BLOCK = 512
"""Tokens of a block that `prefix_ids` name."""

_COLUMNS = ("timestamp_s", "input_tokens", "output_tokens", "prefix_ids")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request: seconds after the first, None where the trace has lengths only."""

    seconds: float | None
    input_tokens: int
    output_tokens: int
    prefix_ids: tuple[str, ...] = ()


def read_trace(path: Path, most: int | None = None) -> list[TraceRow]:
    """The first `most` rows of a CSV file, plain or .gz, sorted by time.

    Columns: timestamp_s (may be empty), input_tokens, output_tokens, prefix_ids
    (ids of 512-token blocks; an equal id is equal text). Raises InputError with
    the number of the line.
    """
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8", newline="")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8", newline="") as file
        ):
            return _read_rows(path, file, most)
    except FileNotFoundError as error:
        raise InputError(f"--trace {path}", found="no such file") from error
    except (UnicodeDecodeError, IsADirectoryError, gzip.BadGzipFile, EOFError, csv.Error) as error:
        raise InputError(f"--trace {path}", found=str(error), expected="a CSV file") from error


def fit_rows(
    rows: Iterable[TraceRow], *, speed: float = 1.0, max_tokens: int | None = None
) -> list[TraceRow]:
    """Rows that come `speed` times as fast, none longer than `max_tokens`.

    A row that is too long keeps its answer, up to half of that, and the head of its prompt.
    """
    return [_shortened(_hastened(row, speed), max_tokens) for row in rows]


def _read_rows(path: Path, lines: Iterable[str], most: int | None) -> list[TraceRow]:
    reader = csv.DictReader(lines)
    if missing := [name for name in _COLUMNS[:3] if name not in (reader.fieldnames or ())]:
        raise InputError(f"{path}:1", found=f"no column {missing[0]}", expected=",".join(_COLUMNS))
    rows: list[TraceRow] = []
    for row in reader:
        if most is not None and len(rows) == most:
            break
        rows.append(_row(f"{path}:{reader.line_num}", row))
    if not rows:
        raise InputError(f"--trace {path}", found="no request", expected="one a line")
    if len({row.seconds is None for row in rows}) > 1:
        raise InputError(f"--trace {path}", found="times in some lines only", expected="in all or none")
    return sorted(rows, key=lambda row: row.seconds or 0.0)


def _row(place: str, row: dict[str, str]) -> TraceRow:
    seconds = (row["timestamp_s"] or "").strip()
    return TraceRow(
        _number(place, "timestamp_s", seconds) if seconds else None,
        _count(place, "input_tokens", row["input_tokens"]),
        _count(place, "output_tokens", row["output_tokens"]),
        tuple((row.get("prefix_ids") or "").split()),
    )


def _number(place: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(place, found=f"{name} {text!r}", expected="seconds, 0 or more")
    return value


def _count(place: str, name: str, text: str | None) -> int:
    if not (text or "").strip().isdecimal() or int(text or 0) < 1:
        raise InputError(place, found=f"{name} {text!r}", expected="a whole number of at least 1")
    return int(text or 0)


def _hastened(row: TraceRow, speed: float) -> TraceRow:
    return row if row.seconds is None else replace(row, seconds=row.seconds / speed)


def _shortened(row: TraceRow, max_tokens: int | None) -> TraceRow:
    if max_tokens is None or row.input_tokens + row.output_tokens <= max_tokens:
        return row
    output = min(row.output_tokens, max_tokens // 2)
    return replace(row, input_tokens=max_tokens - output, output_tokens=output)
