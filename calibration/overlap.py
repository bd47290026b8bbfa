"""How much of the validation data was already seen in calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gristmill.calibration.samples import TokenSamples

__all__ = ["ngram_overlap", "record_overlap"]

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that multiplying by it modulo 2^64 loses nothing (the golden ratio of Knuth's hashing)."""


def record_overlap(calibration: TokenSamples, evaluation: TokenSamples) -> frozenset[str]:
    """Hashes of the conversations, paragraphs and rows that are in both."""
    return calibration.records & evaluation.records


def ngram_overlap(
    calibration: Sequence[Sequence[int]], evaluation: Sequence[Sequence[int]], n: int = 16
) -> float:
    """Share of evaluation tokens that lie in a run of `n` tokens which is in calibration too.

    Runs don't cross from one sequence to the next. Compares 64-bit hashes: the
    chance of a false match is that of a random 64-bit collision.
    """
    seen = [_ngram_hashes(sequence, n) for sequence in calibration]
    known = np.unique(np.concatenate(seen)) if seen else np.empty(0, np.uint64)
    tokens = covered = 0
    for sequence in evaluation:
        tokens += len(sequence)
        hits = _contained(_ngram_hashes(sequence, n), known)
        steps = np.zeros(len(sequence) + 1, np.int64)
        steps[: len(hits)] += hits
        steps[n : n + len(hits)] -= hits
        covered += int(np.count_nonzero(np.cumsum(steps[:-1])))
    return covered / tokens if tokens else 0.0


def _contained(values: NDArray[np.uint64], ordered: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """For each value, whether it is among `ordered`, by binary search."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    places = np.searchsorted(ordered, values)
    found: NDArray[np.bool_] = ordered[np.minimum(places, len(ordered) - 1)] == values
    return found


def _ngram_hashes(sequence: Sequence[int], n: int) -> NDArray[np.uint64]:
    """One hash for each run of `n` tokens, in order; none for a shorter sequence."""
    count = max(0, len(sequence) - n + 1)
    tokens = _mix(np.asarray(sequence, dtype=np.uint64))
    hashes = np.zeros(count, np.uint64)
    for offset in range(n):
        hashes = hashes * _MULTIPLIER + tokens[offset : offset + count]
    return hashes


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread token ids over 64 bits (splitmix64, Steele et al. 2014), so that near ids hash far apart."""
    values = values + _MULTIPLIER
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
