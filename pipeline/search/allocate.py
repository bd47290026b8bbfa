"""Which width each unit gets: a knapsack, solved by the marginal gains on each unit's convex hull.

On its lower convex hull a unit's options lose less and less for each further
bit. Taking the steps of all units in the order of loss spared for each cost is
the Lagrangian relaxation (Everett 1963; Shoham & Gersho 1988): wherever it
stops between two steps, no other choice of that cost or less loses less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Option", "least_cost", "least_loss"]


@dataclass(frozen=True, slots=True)
class Option:
    """A unit at the width number `width`: what it costs, in any unit of storage, and what the model loses."""

    width: int
    cost: float
    loss: float


@dataclass(frozen=True, slots=True)
class _Step:
    """From one hull option of unit `unit` to its next."""

    unit: int
    start: Option
    end: Option

    @property
    def gain(self) -> float:
        """Loss spared for each cost."""
        return (self.start.loss - self.end.loss) / (self.end.cost - self.start.cost)


def least_loss(units: Sequence[Sequence[Option]], cost: float) -> list[Option]:
    """An option for each unit, of little loss together, for at most `cost` if the cheapest allow it.

    Steps that no longer fit are left out and cheaper ones behind them still
    taken. No other choice of that cost loses less by more than the first step
    that was left out would spare.
    """
    chosen = [_hull(options)[0] for options in units]
    spent = sum(option.cost for option in chosen)
    for step in _steps(units):
        added = step.end.cost - step.start.cost
        if chosen[step.unit] is step.start and spent + added <= cost:
            chosen[step.unit] = step.end
            spent += added
    return chosen


def least_cost(units: Sequence[Sequence[Option]], loss: float) -> list[Option]:
    """An option for each unit, cheap together, that lose at most `loss`, if the dearest allow it."""
    chosen = [_hull(options)[0] for options in units]
    for step in _steps(units):
        if sum(option.loss for option in chosen) <= loss:
            break
        chosen[step.unit] = step.end
    return chosen


def _steps(units: Sequence[Sequence[Option]]) -> list[_Step]:
    """All steps, the largest gain first; those of one unit stay in their order."""
    steps = [step for unit, options in enumerate(units) for step in _along(unit, _hull(options))]
    return sorted(steps, key=lambda step: (-step.gain, step.unit, step.end.cost))


def _along(unit: int, hull: Sequence[Option]) -> Iterator[_Step]:
    for start, end in pairwise(hull):
        yield _Step(unit, start, end)


def _hull(options: Sequence[Option]) -> list[Option]:
    """The lower convex hull over cost, from the cheapest option to the one of least loss."""
    hull: list[Option] = []
    for option in sorted(options, key=lambda option: (option.cost, option.loss)):
        if hull and option.loss >= hull[-1].loss:
            continue
        while len(hull) > 1 and _is_above(hull[-1], hull[-2], option):
            hull.pop()
        hull.append(option)
    return hull


def _is_above(middle: Option, left: Option, right: Option) -> bool:
    """Whether `middle` lies on or above the line from `left` to `right`."""
    rise = (right.loss - left.loss) * (middle.cost - left.cost)
    return (middle.loss - left.loss) * (right.cost - left.cost) >= rise
