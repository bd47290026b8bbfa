"""KL of models beside each other: a mixed one on the uniform curve, the best at a width beside RTN."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Point", "gain_lines", "mixed_lines", "uniform_kl"]

LIMIT = 0.75
"""The largest accepted ratio of the mixed model's KL to the curve's."""

LEAST_GAIN = 3
"""How many times lower than RTN's the best method's KL has to be, at 3 bits."""


@dataclass(frozen=True, slots=True)
class Point:
    """One model: stored bits of a quantized weight, scales and zero points included, and KL on wikitext.

    `curve` is what the uniform models of one method share with what is compared with them.
    """

    name: str
    curve: str
    uniform: bool
    bits: float
    kl: float


def uniform_kl(points: Sequence[Point], bits: float) -> float | None:
    """KL of the uniform models at `bits`: log(KL) on a straight line between the neighbours on either side.

    KL falls by about a factor a bit, so that a straight line in KL itself would lie above the curve and
    flatter whatever is compared with it. None outside of the curve.
    """
    curve = sorted((point for point in points if point.uniform), key=lambda point: point.bits)
    for left, right in pairwise(curve):
        if left.bits <= bits <= right.bits:
            share = (bits - left.bits) / (right.bits - left.bits)
            return math.exp((1 - share) * math.log(left.kl) + share * math.log(right.kl))
    return None


def mixed_lines(points: Sequence[Point]) -> Iterator[str]:
    """A line for each mixed model that lies between two uniform ones of its curve."""
    for point in points:
        curve = [other for other in points if other.curve == point.curve]
        if not point.uniform and (uniform := uniform_kl(curve, point.bits)) is not None:
            yield (
                f"{point.name}: KL wiki {point.kl:.4f} at {point.bits:.3f} bits, uniform {uniform:.4f} there"
                f" (log-linear): ratio {point.kl / uniform:.2f} <= {LIMIT}"
            )


def gain_lines(points: Sequence[Point]) -> Iterator[str]:
    """How far below RTN's the best KL of some models lies; no line without RTN or without others."""
    rounded = next((point for point in points if "RTN" in point.name), None)
    others = [point for point in points if point is not rounded]
    if rounded is not None and others:
        best = min(others, key=lambda point: point.kl)
        yield (
            f"{best.name}: KL wiki {best.kl:.4f}, RTN {rounded.kl:.4f}:"
            f" {rounded.kl / best.kl:.2f} times lower > {LEAST_GAIN}"
        )
