"""Metrics agree with their slow twin and with known values, whatever the chunking."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.pipeline.validate.metrics import PositionMetrics, compare_rows, concatenate, summarize
from gristmill.runtime.errors import CheckError

Logits = NDArray[np.float32]


def random_logits(seed: int, rows: int, vocab: int, scale: float = 5.0) -> Logits:
    return (np.random.default_rng(seed).normal(size=(rows, vocab)) * scale).astype(np.float32)


def slow_twin(base: Logits, candidate: Logits, targets: list[int]) -> PositionMetrics:
    """One row at a time, one vocabulary entry at a time, in float64."""

    def log_probabilities(row: Logits) -> list[float]:
        largest = float(row.max())
        total = sum(math.exp(float(x) - largest) for x in row)
        return [float(x) - largest - math.log(total) for x in row]

    base_loss, loss, kl, base_top, top = [], [], [], [], []
    for p_row, q_row, target in zip(base, candidate, targets, strict=True):
        log_p, log_q = log_probabilities(p_row), log_probabilities(q_row)
        kl.append(sum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True)))
        base_top.append(log_p.index(max(log_p)))
        top.append(log_q.index(max(log_q)))
        base_loss.append(-log_p[target] if target >= 0 else math.nan)
        loss.append(-log_q[target] if target >= 0 else math.nan)
    return PositionMetrics(*map(np.array, (base_loss, loss, kl, base_top, top)))


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 12), st.integers(2, 40), st.floats(0.01, 30))
def test_positions_agree_with_the_slow_twin(seed: int, rows: int, vocab: int, scale: float) -> None:
    base, candidate = random_logits(seed, rows, vocab, scale), random_logits(seed + 1, rows, vocab, scale)
    targets = np.random.default_rng(seed).integers(-1, vocab, size=rows)
    fast, slow = compare_rows(base, candidate, targets), slow_twin(base, candidate, targets.tolist())
    np.testing.assert_allclose(fast.kl, slow.kl, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(fast.base_loss, slow.base_loss, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(fast.loss, slow.loss, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(fast.base_top, slow.base_top)
    np.testing.assert_array_equal(fast.top, slow.top)


def test_a_model_is_no_distance_from_itself() -> None:
    logits = random_logits(0, 300, 50)
    metrics = summarize(compare_rows(logits, logits, np.zeros(300, dtype=np.int64)))
    assert (metrics.kl_mean, metrics.kl_p99, metrics.top1_agreement) == (0.0, 0.0, 1.0)
    assert metrics.perplexity == metrics.perplexity_base
    assert metrics.perplexity_increase == 0.0


def test_known_values() -> None:
    base = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], dtype=np.float32))
    candidate = np.log(np.array([[0.25, 0.75], [0.8, 0.2]], dtype=np.float32))
    metrics = summarize(compare_rows(base, candidate, np.array([1, -1])))
    kl = [0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0.9 * math.log(9 / 8) + 0.1 * math.log(0.5)]
    assert metrics.kl_mean == pytest.approx(sum(kl) / 2, rel=1e-6)
    assert metrics.perplexity_base == pytest.approx(2.0, rel=1e-6)
    assert metrics.perplexity == pytest.approx(4 / 3, rel=1e-6)
    assert metrics.top1_agreement == 0.5


def test_p99_is_the_interpolated_quantile_of_all_positions() -> None:
    kl = np.arange(101, dtype=np.float64)
    zeros = np.zeros(101)
    assert summarize(PositionMetrics(zeros, zeros, kl, zeros.astype(int), zeros.astype(int))).kl_p99 == 99.0


def test_chunks_add_up_to_the_whole() -> None:
    base, candidate = random_logits(1, 300, 64), random_logits(2, 300, 64)
    targets = np.arange(300) % 64
    parts = [compare_rows(base[a:b], candidate[a:b], targets[a:b]) for a, b in ((0, 7), (7, 200), (200, 300))]
    assert summarize(concatenate(parts)) == summarize(compare_rows(base, candidate, targets))


def test_logits_of_any_size_keep_finite_metrics() -> None:
    base, candidate = random_logits(3, 4, 8, scale=1e30), random_logits(4, 4, 8, scale=1e-30)
    metrics = summarize(compare_rows(base, candidate, np.zeros(4, dtype=np.int64)))
    assert math.isfinite(metrics.kl_mean)
    assert math.isfinite(metrics.perplexity_base)


@pytest.mark.parametrize(("owner", "broken"), [("original", 0), ("quantized", 1)])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_logit_that_is_no_number_names_model_and_position(owner: str, broken: int, value: float) -> None:
    base, candidate = random_logits(5, 200, 16), random_logits(6, 200, 16)
    (base, candidate)[broken][150, 3] = value
    with pytest.raises(CheckError) as caught:
        compare_rows(base, candidate, np.zeros(200, dtype=np.int64), name="chats, window 2", first=1000)
    assert str(caught.value) == (
        f"validation: logits of the {owner} model at position 1150 of chats, window 2; "
        "found 1 of 16 not finite; expected finite numbers"
    )
