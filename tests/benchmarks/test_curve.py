"""The curve of uniform models that a mixed one is held against."""

from __future__ import annotations

import pytest

from tests.benchmarks.curve import Point, gain_lines, mixed_lines, uniform_kl

UNIFORM = [
    Point("four", "RTN", True, 4.0, 0.16),
    Point("six", "RTN", True, 6.0, 0.01),
    Point("five", "RTN", True, 5.0, 0.04),
]


def test_between_two_models_the_logarithm_is_on_a_straight_line() -> None:
    assert uniform_kl(UNIFORM, 4.5) == pytest.approx(0.08)
    assert uniform_kl(UNIFORM, 6.0) == pytest.approx(0.01)


def test_there_is_no_curve_outside_of_its_models() -> None:
    assert uniform_kl(UNIFORM, 3.9) is None
    assert list(mixed_lines([*UNIFORM, Point("narrow", "RTN", False, 3.0, 0.5)])) == []


def test_a_mixed_model_is_compared_at_its_own_bits() -> None:
    (line,) = mixed_lines([*UNIFORM, Point("mixed", "RTN", False, 4.5, 0.06)])
    assert (
        line == "mixed: KL wiki 0.0600 at 4.500 bits, uniform 0.0800 there (log-linear): ratio 0.75 <= 0.75"
    )


def test_each_method_has_its_own_curve() -> None:
    better = [Point("four by GPTQ", "GPTQ", True, 4.0, 0.04), Point("five by GPTQ", "GPTQ", True, 5.0, 0.01)]
    (line,) = mixed_lines([*UNIFORM, *better, Point("mixed", "GPTQ", False, 4.5, 0.01)])
    assert "uniform 0.0200 there" in line


def test_the_best_of_a_width_is_compared_with_rounding_alone() -> None:
    rounded, learned = Point("3 bits: RTN", "", True, 3.3, 2.0), Point("3 bits: learned", "", True, 3.3, 0.4)
    (line,) = gain_lines([rounded, Point("3 bits: other", "", True, 3.3, 0.5), learned])
    assert line == "3 bits: learned: KL wiki 0.4000, RTN 2.0000: 5.00 times lower > 3"
    assert list(gain_lines([rounded])) == list(gain_lines([learned])) == []
