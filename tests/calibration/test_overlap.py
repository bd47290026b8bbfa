"""Overlap by runs of tokens agrees with the slow, obvious way to count it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.calibration.overlap import ngram_overlap, record_overlap
from gristmill.calibration.samples import TokenSamples

small = st.lists(st.lists(st.integers(0, 3), max_size=25), max_size=5)


def slow_overlap(calibration: Sequence[Sequence[int]], evaluation: Sequence[Sequence[int]], n: int) -> float:
    seen = {tuple(row[i : i + n]) for row in calibration for i in range(len(row) - n + 1)}
    covered = set()
    for index, row in enumerate(evaluation):
        for i in range(len(row) - n + 1):
            if tuple(row[i : i + n]) in seen:
                covered |= {(index, i + offset) for offset in range(n)}
    tokens = sum(len(row) for row in evaluation)
    return len(covered) / tokens if tokens else 0.0


@settings(max_examples=200)
@given(calibration=small, evaluation=small, n=st.integers(1, 6))
def test_overlap_equals_the_slow_twin(
    calibration: list[list[int]], evaluation: list[list[int]], n: int
) -> None:
    assert ngram_overlap(calibration, evaluation, n) == slow_overlap(calibration, evaluation, n)


def test_one_common_run_counts_its_tokens_once() -> None:
    shared = list(range(100, 120))
    assert ngram_overlap([[1, *shared, 2]], [[*range(20), *shared, *range(40)]]) == 20 / 80


def test_a_run_one_token_short_does_not_count() -> None:
    assert ngram_overlap([list(range(15))], [list(range(15))], n=16) == 0.0


def test_a_million_tokens_take_seconds() -> None:
    rng = random.Random(0)
    rows = [[rng.randrange(50_000) for _ in range(2_000)] for _ in range(250)]
    start = time.perf_counter()
    assert ngram_overlap(rows, rows) == pytest.approx(1.0)
    assert time.perf_counter() - start < 10


def test_common_records_are_named() -> None:
    def samples(*records: str) -> TokenSamples:
        return TokenSamples((), "sha256:", 0, 0, frozenset(records), ())

    assert record_overlap(samples("a", "b"), samples("b", "c")) == {"b"}
