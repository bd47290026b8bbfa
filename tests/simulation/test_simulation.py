"""50,000 steps of random traffic: every law holds after each, and everyone is served."""

from __future__ import annotations

import pytest

from tests.simulation.simulation import simulate


@pytest.mark.parametrize("seed", range(4))
def test_every_law_holds_over_random_traffic(seed: int) -> None:
    outcomes = simulate(seed, 12_500)
    for outcome in ("done", "aborted", "failed", "queue_full", "context_length_exceeded"):
        assert outcomes[outcome] > 20, outcome
    for event in ("preempted", "recomputed", "cached", "copied", "protected"):
        assert outcomes[event] > 5, event
