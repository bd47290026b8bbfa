"""Outlier channels: the few channels of the hidden states that are far larger than the others.

They stretch the range of every number format that they share with the rest (Dettmers et al. 2022,
LLM.int8(), section 3; Sun et al. 2024, Massive Activations in Large Language Models).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # reports read what was found where torch is not installed
    import torch

__all__ = ["ChannelPeaks", "LayerOutliers"]

_TIMES_MEDIAN = 20.0
_CHANNELS = 8


@dataclass(frozen=True, slots=True)
class LayerOutliers:
    """The hidden states behind layer `layer`: the peaks |x| of the largest and of the median channel.

    `channels` are those whose peak is at least 20 times the median's, the largest first, at most 8.
    """

    layer: int
    largest: float
    median: float
    channels: tuple[int, ...]


class ChannelPeaks:
    """The peak of every channel behind every layer, over all tokens that are shown to it."""

    def __init__(self) -> None:
        self._peaks: dict[int, torch.Tensor] = {}

    def update(self, layer: int, states: torch.Tensor) -> None:
        """Take in hidden states [..., hidden] behind a layer."""
        peaks = states.detach().abs().flatten(0, -2).amax(0).float()
        before = self._peaks.get(layer)
        self._peaks[layer] = peaks if before is None else before.maximum(peaks)

    def outliers(self) -> tuple[LayerOutliers, ...]:
        """What was seen, layer by layer."""
        return tuple(_outliers(layer, peaks) for layer, peaks in sorted(self._peaks.items()))


def _outliers(layer: int, peaks: torch.Tensor) -> LayerOutliers:
    median = float(peaks.median())
    order = peaks.argsort(descending=True, stable=True)[:_CHANNELS].tolist()
    channels = tuple(channel for channel in order if float(peaks[channel]) >= _TIMES_MEDIAN * median)
    return LayerOutliers(layer, float(peaks.max()), median, channels)
