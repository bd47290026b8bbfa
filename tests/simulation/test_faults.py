"""The simulation notices a bug in each law."""

from __future__ import annotations

import pytest

from gristmill.runtime.errors import InternalError
from tests.simulation.faults import FAULTS
from tests.simulation.simulation import simulate


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, attribute, fault, notice = FAULTS[name]
    monkeypatch.setattr(where, attribute, fault(getattr(where, attribute)))
    with pytest.raises((AssertionError, InternalError), match=notice):
        simulate(seed=1, num_steps=6000)
