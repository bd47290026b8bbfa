"""How sure perplexity and divergence are: intervals over the windows of held-out data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.pipeline.validate.differences import Difference, paired_difference
from gristmill.pipeline.validate.metrics import PositionMetrics

__all__ = ["WindowIntervals", "window_intervals"]

_MARGIN = 0.01
"""Nats a token that count as no difference: 1 % of perplexity."""


@dataclass(frozen=True, slots=True)
class WindowIntervals:
    """Loss in nats a token beside the original's, and 95 % intervals, all by means of windows.

    Tokens of one window depend on each other, windows hardly do: so windows are resampled.
    """

    loss: Difference
    kl_low: float
    kl_high: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {"loss": asdict(self.loss), "kl_interval": [self.kl_low, self.kl_high]}


def window_intervals(positions: PositionMetrics, lengths: Sequence[int]) -> WindowIntervals:
    """Intervals over consecutive windows of these lengths, each with a token that is predicted."""
    base, loss, kl = (
        _means(values, lengths) for values in (positions.base_loss, positions.loss, positions.kl)
    )
    divergence = paired_difference([0.0] * len(kl), kl)
    return WindowIntervals(
        paired_difference(base, loss, margin=_MARGIN, higher_is_better=False),
        divergence.low,
        divergence.high,
    )


def _means(values: NDArray[np.float64], lengths: Sequence[int]) -> list[float]:
    """The mean of each window; the last position of one predicts nothing and has no loss."""
    return [float(np.nanmean(window)) for window in np.split(values, list(accumulate(lengths))[:-1])]
