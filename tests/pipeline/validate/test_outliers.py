"""Outlier channels are found by their peaks over all tokens, layer by layer."""

from __future__ import annotations

import torch

from gristmill.pipeline.validate.outliers import ChannelPeaks, LayerOutliers


def test_a_channel_far_above_the_median_is_an_outlier() -> None:
    states = torch.ones(2, 5, 9)
    states[1, 3, 7] = -50.0
    states[0, 0, 2] = 21.0
    states[0, 1, 4] = 19.0
    peaks = ChannelPeaks()
    peaks.update(0, states)
    assert peaks.outliers() == (LayerOutliers(0, 50.0, 1.0, (7, 2)),)


def test_batches_add_up_and_layers_stay_apart() -> None:
    peaks = ChannelPeaks()
    peaks.update(1, torch.tensor([[[1.0, -2.0, 3.0]]]))
    peaks.update(0, torch.tensor([[[1.0, 1.0, 1.0]]]))
    peaks.update(1, torch.tensor([[[-4.0, 0.0, 0.0]]]))
    assert [(found.layer, found.largest, found.median) for found in peaks.outliers()] == [
        (0, 1.0, 1.0),
        (1, 4.0, 3.0),
    ]


def test_nothing_seen_is_nothing_found() -> None:
    assert ChannelPeaks().outliers() == ()
