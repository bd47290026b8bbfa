"""Paired differences: the interval of an index bootstrap, and verdicts that need evidence."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.pipeline.validate.differences import paired_difference


def _answers(items: int, improved: int, worsened: int) -> tuple[list[float], list[float]]:
    """Answers of two models, half of them right, that differ in so many items."""
    base = [float(index % 2) for index in range(items)]
    other = list(base)
    for index in range(improved):
        other[2 * index] = 1.0
    for index in range(worsened):
        other[2 * index + 1] = 0.0
    return base, other


def test_the_interval_is_that_of_resampled_pairs() -> None:
    """The slow twin draws indices; both draw the same law, so that many draws agree closely."""
    base, other = _answers(200, 5, 17)
    found = paired_difference(base, other)
    values = np.array(other) - np.array(base)
    draws = np.random.default_rng(1).integers(0, 200, (20_000, 200))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    assert [found.low, found.high] == pytest.approx([low, high], abs=0.0051)


def test_flips_are_counted_by_direction() -> None:
    found = paired_difference(*_answers(200, 5, 17))
    assert (found.improved, found.worsened, found.items) == (5, 17, 200)


def test_lower_is_better_turns_flips_and_verdicts_round() -> None:
    base, other = _answers(400, 2, 60)
    found = paired_difference(base, other, higher_is_better=False)
    assert (found.improved, found.worsened, found.verdict) == (60, 2, "better")


@pytest.mark.parametrize(
    ("items", "improved", "worsened", "verdict"),
    [
        (400, 2, 60, "worse"),
        (400, 60, 2, "better"),
        (2000, 10, 10, "same"),
        (200, 0, 0, "same"),
        (100, 0, 0, "not enough data"),  # 3 of 100 might still differ
        (8, 0, 4, "not enough data"),  # four flips in one direction come by chance
        (400, 20, 20, "not enough data"),  # between -3 and +3 points
        (1, 0, 0, "not enough data"),
    ],
)
def test_a_verdict_needs_evidence(items: int, improved: int, worsened: int, verdict: str) -> None:
    assert paired_difference(*_answers(items, improved, worsened)).verdict == verdict


def test_the_same_seed_gives_the_same_interval() -> None:
    answers = _answers(300, 9, 21)
    assert paired_difference(*answers, seed=3) == paired_difference(*answers, seed=3)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Of 300 draws with a true difference of -4 points, 95 % of the intervals hold it, give or take 4 %."""
    random = np.random.default_rng(7)
    held = 0
    for _ in range(300):
        values = random.choice([-1.0, 0.0, 1.0], size=250, p=[0.10, 0.84, 0.06])
        found = paired_difference([0.0] * 250, values.tolist())
        held += found.low <= -0.04 <= found.high
    assert 0.91 <= held / 300 <= 0.99
