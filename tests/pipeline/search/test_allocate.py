"""The knapsack beside its exact twin, which tries every combination."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.pipeline.search.allocate import Option, least_cost, least_loss

Units = Sequence[Sequence[Option]]

options = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 200)), min_size=1, max_size=4, unique_by=lambda o: o[0]
).map(lambda found: [Option(place, cost, loss) for place, (cost, loss) in enumerate(sorted(found))])
units = st.lists(options, min_size=1, max_size=5)


def cost_of(chosen: Sequence[Option]) -> float:
    return sum(option.cost for option in chosen)


def loss_of(chosen: Sequence[Option]) -> float:
    return sum(option.loss for option in chosen)


def exact(found: Units, cost: float) -> float:
    """The least loss of all combinations for at most `cost`."""
    return min(loss_of(chosen) for chosen in itertools.product(*found) if cost_of(chosen) <= cost)


@given(units)
def test_nothing_of_the_same_cost_loses_less_than_a_choice_between_two_steps(found: Units) -> None:
    for loss in {loss_of(chosen) for chosen in itertools.product(*found)}:
        if loss >= sum(min(option.loss for option in options) for options in found):
            chosen = least_cost(found, loss)
            assert loss_of(chosen) <= loss
            assert loss_of(chosen) == exact(found, cost_of(chosen))


@given(units, st.integers(0, 100))
def test_a_choice_keeps_its_budget_and_misses_the_best_by_less_than_one_step(
    found: Units, spare: int
) -> None:
    cheapest = sum(min(option.cost for option in options) for options in found)
    chosen = least_loss(found, cheapest + spare)
    assert cost_of(chosen) <= cheapest + spare
    largest = max(max(o.loss for o in options) - min(o.loss for o in options) for options in found)
    assert loss_of(chosen) - exact(found, cheapest + spare) <= largest


def test_a_width_above_the_line_between_its_neighbours_is_never_a_stop() -> None:
    unit = [Option(3, 3, 10), Option(4, 4, 9), Option(5, 5, 0)]
    assert [option.width for option in least_loss([unit], 4)] == [3]
    assert [option.width for option in least_loss([unit], 5)] == [5]


@pytest.mark.parametrize("budget", [0.0, 3.0])
def test_equal_choices_fall_on_the_first_unit(budget: float) -> None:
    unit = [Option(4, 4, 2), Option(5, 5, 1)]
    assert [option.width for option in least_loss([unit, unit], 9)] == [5, 4]
