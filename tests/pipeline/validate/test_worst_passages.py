"""The worst passages lie where the divergence is, with the tokens and predictions of that place."""

from __future__ import annotations

import numpy as np

from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.validate.data import HeldOut
from gristmill.pipeline.validate.metrics import PositionMetrics
from gristmill.pipeline.validate.worst import worst_passages


def held_out(name: str, *windows: range) -> HeldOut:
    sequences = tuple(map(tuple, windows))
    return HeldOut(name, TokenSamples(sequences, "", 1, sum(map(len, sequences)), frozenset(), ()))


def measured(kl: list[float]) -> PositionMetrics:
    values = np.array(kl)
    places = np.arange(len(kl))
    return PositionMetrics(values, values, values, places, places + 1)


def test_a_passage_surrounds_the_largest_divergence() -> None:
    kl = [0.0] * 400
    kl[250] = 9.0  # in the second window, whose tokens count from 1000: predicts token 1051
    (passage,) = worst_passages([held_out("a", range(200), range(1000, 1200))], [measured(kl)], count=1)
    assert (passage.data, passage.window) == ("a", 1)
    assert 1051 in passage.tokens[-len(passage.kl) :]
    at = passage.tokens.index(1051) - (len(passage.tokens) - len(passage.kl))
    assert passage.kl[at] == 9.0
    assert (passage.base_top[at], passage.top[at]) == (250, 251)
    assert passage.tokens[0] == 1000 + passage.start


def test_the_largest_come_first_and_a_window_gives_one() -> None:
    kl = [1.0] * 100 + [3.0] * 100 + [2.0] * 100
    found = worst_passages([held_out("a", *[range(100)] * 3)], [measured(kl)])
    assert [passage.window for passage in found] == [1, 2, 0]


def test_windows_of_one_token_predict_nothing() -> None:
    assert not worst_passages([held_out("a", range(1))], [measured([5.0])])


def test_a_short_window_is_a_passage_whole() -> None:
    (passage,) = worst_passages([held_out("a", range(4))], [measured([1.0, 2.0, 3.0, 9.0])])
    assert passage.tokens == (0, 1, 2, 3)
    assert passage.kl == (1.0, 2.0, 3.0)
