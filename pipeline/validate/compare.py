"""Compare a quantized model with its original over held-out data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gristmill.pipeline.validate.gates import evaluate_gates
from gristmill.pipeline.validate.logits import LogitsSource, Sequences
from gristmill.pipeline.validate.metrics import (
    PositionMetrics,
    compare_rows,
    concatenate,
    summarize,
)
from gristmill.pipeline.validate.overlap import covered_tokens
from gristmill.pipeline.validate.result import DataResult, ValidationResult
from gristmill.recipes import Gate

__all__ = ["HeldOut", "compare_models"]

_ROWS = 512


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One held-out data set as windows of tokens, each read by itself; `records` hash what it was made of."""

    name: str
    windows: tuple[tuple[int, ...], ...]
    records: frozenset[str] = frozenset()

    @property
    def tokens(self) -> int:
        """Tokens of all windows."""
        return sum(map(len, self.windows))


def compare_models(
    original: LogitsSource,
    quantized: LogitsSource,
    data: Sequence[HeldOut],
    *,
    calibration: Sequences = (),
    gates: Sequence[Gate] = (),
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> ValidationResult:
    """Metrics over `data`, at least one set of one window of two tokens, and how the gates stand.

    `calibration` are the sequences that overlap is counted against;
    `on_tokens` hears how many positions were just compared. Peak memory is two
    chunks of 512 rows of logits beside the sources. A failed gate is part of
    the result: `require_gates` raises it.
    """
    rows = []
    everything = []
    covered = 0
    windows = [window for held_out in data for window in held_out.windows]
    pairs = zip(original.logits(windows, _ROWS), quantized.logits(windows, _ROWS), strict=True)
    for held_out in data:
        positions = concatenate(list(_positions(held_out, pairs, on_tokens)))
        seen = covered_tokens(held_out.windows, calibration)
        overlap = seen / held_out.tokens
        rows.append(DataResult(held_out.name, len(held_out.windows), summarize(positions), overlap))
        everything.append(positions)
        covered += seen
    metrics = summarize(concatenate(everything))
    overlap = covered / sum(held_out.tokens for held_out in data)
    return ValidationResult(metrics, overlap, tuple(rows), evaluate_gates(gates, metrics))


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
