"""Repairing a failed gate: the fewest units, the costliest first, get the next width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gristmill.pipeline.search.stage import Sensitivity
from gristmill.pipeline.search.units import Width
from gristmill.pipeline.validate.gates import GateResult

__all__ = ["fewest", "first_guess", "promoted"]

_PROPORTIONAL = ("kl_mean", "kl_p99", "perplexity_increase")
"""Metrics that fall about as the units' summed loss does."""


def promoted(sensitivity: Sensitivity, widths: Sequence[Width]) -> list[tuple[Width, ...]]:
    """The widths after no, one, two ... promotions, to the last that there is.

    Each promotion gives one unit its next width: the unit whose loss falls most.
    """
    steps = [tuple(widths)]
    while (unit := _worst(sensitivity, steps[-1])) is not None:
        wider = _next(sensitivity, steps[-1][unit])
        assert wider is not None  # `_worst`
        steps.append((*steps[-1][:unit], wider, *steps[-1][unit + 1 :]))
    return steps


def first_guess(
    sensitivity: Sensitivity, steps: Sequence[Sequence[Width]], results: Sequence[GateResult]
) -> int:
    """After how many promotions, one at least, the summed loss falls as far as the failed gates ask."""
    needed = [
        result.gate.limit / result.value
        for result in results
        if not result.passed and result.gate.metric in _PROPORTIONAL and result.value > 0
    ]
    aim = min(needed, default=1.0) * _summed(sensitivity, steps[0])
    sums = (_summed(sensitivity, widths) for widths in steps)
    return next((count for count, loss in enumerate(sums) if count and loss <= aim), max(len(steps) - 1, 1))


def fewest(most: int, guess: int, passes: Callable[[int], bool]) -> int | None:
    """The least count from 1 to `most` that `passes`, None if `most` does not.

    A count that passes makes all larger ones pass. Asks near `guess` first, at
    growing distances, then halves what is left; never asks for one count twice.
    """
    low, high = 0, most + 1  # low fails, high passes or is out of reach
    count, distance = min(guess, most), 1
    while low + 1 < high:
        if passes(count):
            high = count
            count = max(high - distance, low + 1)
        else:
            low = count
            count = min(low + distance, high - 1)
        distance *= 2
        if low > 0 and high <= most:
            count = (low + high) // 2
    return high if high <= most else None


def _next(sensitivity: Sensitivity, width: Width) -> Width | None:
    """The width with more bits that comes next; None behind the last."""
    return next((wider for wider in sensitivity.widths if wider.bits > width.bits), None)


def _worst(sensitivity: Sensitivity, widths: Sequence[Width]) -> int | None:
    """The unit whose next width spares most; None where no unit has one."""
    spared = {
        unit: _loss(sensitivity, unit, width) - _loss(sensitivity, unit, wider)
        for unit, width in enumerate(widths)
        if (wider := _next(sensitivity, width)) is not None
    }
    return max(spared, key=lambda unit: (spared[unit], -unit), default=None)


def _summed(sensitivity: Sensitivity, widths: Sequence[Width]) -> float:
    return sum(_loss(sensitivity, unit, width) for unit, width in enumerate(widths))


def _loss(sensitivity: Sensitivity, unit: int, width: Width) -> float:
    return sensitivity.losses[unit][sensitivity.widths.index(width)]
