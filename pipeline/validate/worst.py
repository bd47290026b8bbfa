"""Where a quantized model is furthest from its original: the passages for a reader to judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # reports read passages where torch, which both need, is not installed
    from gristmill.pipeline.validate.data import HeldOut
    from gristmill.pipeline.validate.metrics import PositionMetrics

__all__ = ["Passage", "worst_passages"]

_PASSAGES = 6
_SCORED = 48
_CONTEXT = 16
_DIGITS = 4
"""Decimals of the KL of a token: what a reader sees."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of window `window` of data set `data`, beginning at token `start`.

    `kl`, `base_top` and `top` are those of the predictions of the last `len(kl)` tokens,
    each made from all tokens before it; the tokens before those are context. KL in nats.
    """

    data: str
    window: int
    start: int
    tokens: tuple[int, ...]
    kl: tuple[float, ...]
    base_top: tuple[int, ...]
    top: tuple[int, ...]

    @property
    def kl_mean(self) -> float:
        """Mean over the predicted tokens."""
        return sum(self.kl) / len(self.kl)


def worst_passages(
    data: Sequence[HeldOut], positions: Sequence[PositionMetrics], count: int = _PASSAGES
) -> tuple[Passage, ...]:
    """The passages with the largest mean KL, at most one a window, largest first."""
    found: list[Passage] = []
    for held_out, measured in zip(data, positions, strict=True):
        first = 0
        for index, window in enumerate(held_out.windows):
            if len(window) > 1:
                found.append(_worst_of(held_out.name, index, window, measured, first))
            first += len(window)
    return tuple(sorted(found, key=lambda passage: -passage.kl_mean)[:count])


def _worst_of(name: str, index: int, window: Sequence[int], measured: PositionMetrics, first: int) -> Passage:
    """The worst passage of the window whose positions begin at `first`."""
    predictions = len(window) - 1
    length = min(_SCORED, predictions)
    sums = np.convolve(measured.kl[first : first + predictions], np.ones(length), "valid")
    begin = int(sums.argmax())
    rows = slice(first + begin, first + begin + length)
    start = max(0, begin + 1 - _CONTEXT)
    return Passage(
        data=name,
        window=index,
        start=start,
        tokens=tuple(window[start : begin + 1 + length]),
        kl=tuple(measured.kl[rows].round(_DIGITS).tolist()),
        base_top=tuple(measured.base_top[rows].tolist()),
        top=tuple(measured.top[rows].tolist()),
    )
