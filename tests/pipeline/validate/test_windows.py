"""Intervals over windows: what is resampled is the window, and one alone says nothing."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.pipeline.validate.metrics import PositionMetrics
from gristmill.pipeline.validate.windows import window_intervals


def _positions(windows: int, length: int, added: float) -> PositionMetrics:
    """Windows whose tokens share their difficulty; the candidate loses `added` nats, give or take."""
    random = np.random.default_rng(0)
    base = np.repeat(random.normal(3.0, 0.5, windows), length)
    loss = base + np.repeat(random.normal(added, 0.02, windows), length)
    for losses in (base, loss):
        losses[length - 1 :: length] = np.nan
    top = np.zeros(windows * length, dtype=np.int64)
    return PositionMetrics(base, loss, np.repeat(random.normal(0.1, 0.01, windows), length), top, top)


@pytest.mark.parametrize(("added", "verdict"), [(0.1, "worse"), (-0.1, "better"), (0.001, "same")])
def test_a_difference_of_losses_has_a_verdict(added: float, verdict: str) -> None:
    found = window_intervals(_positions(64, 32, added), [32] * 64)
    assert found.loss.verdict == verdict
    assert found.loss.items == 64


def test_tokens_that_share_a_window_do_not_make_it_surer() -> None:
    short = window_intervals(_positions(16, 8, 0.05), [8] * 16)
    long = window_intervals(_positions(16, 256, 0.05), [256] * 16)
    assert [long.loss.low, long.kl_high] == pytest.approx([short.loss.low, short.kl_high])


def test_one_window_is_not_enough_data() -> None:
    assert window_intervals(_positions(1, 512, 0.1), [512]).loss.verdict == "not enough data"


def test_windows_may_differ_in_length() -> None:
    positions = _positions(2, 6, 0.1)
    found = window_intervals(positions, [4, 8])
    assert found.loss.base == pytest.approx(
        (np.nanmean(positions.base_loss[:4]) + np.nanmean(positions.base_loss[4:])) / 2
    )
