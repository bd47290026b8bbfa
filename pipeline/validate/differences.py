"""Is one model better than another on the same items: paired bootstrap intervals and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = ["MARGIN", "Difference", "Verdict", "paired_difference"]

Verdict = Literal["better", "same", "worse", "not enough data"]

MARGIN = 0.02
"""A difference of accuracy that counts as none."""

_RESAMPLES = 10_000
_TAIL = 0.025  # of each side: a 95 % interval
_FEWEST_CHANGES = 6  # the sign test's: six changes in one direction have p = 0.03 by chance, five 0.06
_UNSEEN = 3.0  # the rule of three: of what n items never show, up to 3 / n may happen


@dataclass(frozen=True, slots=True)
class Difference:
    """Means of both models over the same items, their difference and its 95 % interval.

    `improved` and `worsened` count the items whose value is better or worse
    than the base's: wrong to right and right to wrong, for answers.
    """

    base: float
    value: float
    difference: float
    low: float
    high: float
    improved: int
    worsened: int
    items: int
    verdict: Verdict


def paired_difference(
    base: Sequence[float],
    other: Sequence[float],
    *,
    margin: float = MARGIN,
    higher_is_better: bool = True,
    seed: int = 0,
) -> Difference:
    """How `other` differs from `base`, at least one value of each, item by item.

    The interval is the percentile bootstrap over items (Efron 1979), which
    resamples pairs, so that what is hard for both models cancels. Better and
    worse need an interval on one side of 0 and 6 items that changed; same
    needs the interval within `margin`, and items enough to have seen such a change.
    """
    values = np.asarray(other, dtype=np.float64) - np.asarray(base, dtype=np.float64)
    low, high = _interval(values, seed)
    ups, downs = int((values > 0).sum()), int((values < 0).sum())
    improved, worsened = (ups, downs) if higher_is_better else (downs, ups)
    return Difference(
        base=float(np.mean(base)),
        value=float(np.mean(other)),
        difference=float(values.mean()),
        low=low,
        high=high,
        improved=improved,
        worsened=worsened,
        items=len(values),
        verdict=_verdict(low, high, ups + downs, len(values), margin, higher_is_better=higher_is_better),
    )


def _interval(values: np.ndarray[tuple[int], np.dtype[np.float64]], seed: int) -> tuple[float, float]:
    """Means of resamples, drawn as counts of each distinct value: the same law, without an index an item."""
    distinct, counts = np.unique(values, return_counts=True)
    draws = np.random.default_rng(seed).multinomial(len(values), counts / len(values), _RESAMPLES)
    low, high = np.quantile(draws @ distinct / len(values), [_TAIL, 1 - _TAIL])
    return float(low), float(high)


def _verdict(
    low: float, high: float, changed: int, items: int, margin: float, *, higher_is_better: bool
) -> Verdict:
    enough = changed >= _FEWEST_CHANGES
    if enough and (low > 0 or high < 0):
        return "better" if (low > 0) == higher_is_better else "worse"
    if -margin <= low and high <= margin and (enough or _UNSEEN / items <= margin):
        return "same"
    return "not enough data"
