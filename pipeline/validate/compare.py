"""Compare a quantized model with its original over held-out data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gristmill.calibration.samples import TokenSamples
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
from gristmill.recipes import Gate

__all__ = ["compare_models"]

_ROWS = 512


def compare_models(
    original: LogitsSource,
    quantized: LogitsSource,
    data: Sequence[HeldOut],
    *,
    calibration: TokenSamples | None = None,
    gates: Sequence[Gate] = (),
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> ValidationResult:
    """Metrics over `data`, at least one set, and how the gates stand.

    `calibration` is what overlap is counted against; `on_tokens` hears how many
    positions were just compared. Peak memory is two chunks of 512 rows of
    logits beside the sources. A failed gate is part of the result:
    `require_gates` raises it.
    """
    windows = [window for held_out in data for window in held_out.windows]
    pairs = zip(original.logits(windows, _ROWS), quantized.logits(windows, _ROWS), strict=True)
    positions = [concatenate(list(_positions(held_out, pairs, on_tokens))) for held_out in data]
    overlaps = shared_text(data, calibration)
    rows = tuple(
        DataResult(held_out.name, len(held_out.windows), summarize(part), overlap)
        for held_out, part, overlap in zip(data, positions, overlaps, strict=True)
    )
    metrics = summarize(concatenate(positions))
    overlap = sum(row.overlap * row.metrics.positions for row in rows) / metrics.positions
    return ValidationResult(metrics, overlap, rows, evaluate_gates(gates, metrics))


def _positions(
    held_out: HeldOut,
    pairs: Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]],
    on_tokens: Callable[[int], None],
) -> Iterator[PositionMetrics]:
    """The positions of one data set, chunk by chunk, taken from the sources' chunks in step."""
    for index, window in enumerate(held_out.windows):
        targets = np.array([*window[1:], -1], dtype=np.int64)
        for start in range(0, len(window), _ROWS):
            base, candidate = next(pairs)
            chunk = targets[start : start + _ROWS]
            yield compare_rows(base, candidate, chunk, name=f"{held_out.name}, window {index}", first=start)
            on_tokens(len(chunk))
