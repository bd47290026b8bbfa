"""Compare a quantized model, on one engine or several, with its original over held-out data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.progress import Progress, SilentProgress
from gristmill.pipeline.validate.data import HeldOut
from gristmill.pipeline.validate.gates import evaluate_gates
from gristmill.pipeline.validate.logits import LogitsSource
from gristmill.pipeline.validate.metrics import (
    PositionMetrics,
    compare_rows,
    concatenate,
    summarize,
)
from gristmill.pipeline.validate.overlap import shared_text
from gristmill.pipeline.validate.result import DataResult, ValidationResult
from gristmill.pipeline.validate.windows import window_intervals
from gristmill.pipeline.validate.worst import worst_passages
from gristmill.recipes import Gate

__all__ = ["compare_engines", "compare_models"]

_ROWS = 512


def compare_models(
    original: LogitsSource,
    quantized: LogitsSource,
    data: Sequence[HeldOut],
    *,
    calibration: TokenSamples | None = None,
    gates: Sequence[Gate] = (),
    progress: Progress | None = None,
) -> ValidationResult:
    """Metrics over `data`, at least one set, and how the gates stand.

    `calibration` is what overlap is counted against; `progress` hears of the
    stage `validate` once the first logits are there, and of positions that were
    compared. Peak memory is two chunks of 512 rows of logits beside the
    sources. A failed gate is part of the result: `require_gates` raises it.
    """
    compared = compare_engines(original, {"": quantized}, data, calibration=calibration, progress=progress)
    result = compared[""]
    return replace(result, gates=evaluate_gates(gates, result.metrics))


def compare_engines(
    original: LogitsSource,
    engines: Mapping[str, LogitsSource],
    data: Sequence[HeldOut],
    *,
    calibration: TokenSamples | None = None,
    progress: Progress | None = None,
) -> dict[str, ValidationResult]:
    """As `compare_models`, for several engines in one pass over the original."""
    windows = [window for held_out in data for window in held_out.windows]
    tell = progress or SilentProgress()
    chunks = _in_step((original, *engines.values()), windows, tell)
    positions: dict[str, list[PositionMetrics]] = {engine: [] for engine in engines}
    for held_out in data:
        parts = list(_positions(held_out, tuple(engines), chunks, tell))
        for index, engine in enumerate(engines):
            positions[engine].append(concatenate([part[index] for part in parts]))
    overlaps = shared_text(data, calibration)
    return {engine: _result(data, positions[engine], overlaps) for engine in engines}


def _in_step(
    sources: Sequence[LogitsSource], windows: Sequence[Sequence[int]], progress: Progress
) -> Iterator[tuple[NDArray[np.float32], ...]]:
    """The chunks of all sources side by side.

    The stage begins behind the first, so that the time left counts comparing
    alone: before its first logits the original went through all its layers.
    """
    chunks = zip(*(source.logits(windows, _ROWS) for source in sources), strict=True)
    first = next(chunks)
    progress.stage("validate", sum(map(len, windows)), "tokens")
    return itertools.chain([first], chunks)


def _positions(
    held_out: HeldOut,
    engines: Sequence[str],
    chunks: Iterator[tuple[NDArray[np.float32], ...]],
    progress: Progress,
) -> Iterator[list[PositionMetrics]]:
    """One data set chunk by chunk, each with an entry an engine, taken from all sources in step."""
    for index, window in enumerate(held_out.windows):
        targets = np.array([*window[1:], -1], dtype=np.int64)
        for start in range(0, len(window), _ROWS):
            base, *candidates = next(chunks)
            chunk = targets[start : start + _ROWS]
            where = f"{held_out.name}, window {index}"
            yield [
                compare_rows(base, rows, chunk, name=f"{where} on {engine}" if engine else where, first=start)
                for engine, rows in zip(engines, candidates, strict=True)
            ]
            progress.advance(len(chunk))


def _result(
    data: Sequence[HeldOut], positions: Sequence[PositionMetrics], overlaps: Sequence[float]
) -> ValidationResult:
    lengths = [[len(window) for window in held_out.windows] for held_out in data]
    rows = tuple(
        DataResult(held_out.name, len(windows), summarize(part), overlap, window_intervals(part, windows))
        for held_out, windows, part, overlap in zip(data, lengths, positions, overlaps, strict=True)
    )
    everything = concatenate(positions)
    metrics = summarize(everything)
    overlap = sum(row.overlap * row.metrics.positions for row in rows) / metrics.positions
    intervals = window_intervals(everything, [length for windows in lengths for length in windows])
    return ValidationResult(metrics, overlap, rows, intervals, worst=worst_passages(data, positions))
