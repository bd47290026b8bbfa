"""The widths of a build's units and what speaks for them: the evidence that an artifact carries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from gristmill.pipeline.search.stage import Sensitivity
from gristmill.pipeline.search.units import Width
from gristmill.recipes.search import SearchSettings

__all__ = ["UnitWidth", "WidthChoice", "candidates", "width_choice"]


def candidates(search: SearchSettings) -> tuple[Width, ...]:
    """All widths that a search tries: bits rise, and within the same bits groups get smaller."""
    falling = sorted(search.group_size, key=lambda size: math.inf if size == -1 else size, reverse=True)
    return tuple(Width(bits, size) for bits in search.bits for size in falling or (None,))


@dataclass(frozen=True, slots=True)
class UnitWidth:
    """Linears that share a width.

    losses         nats a token of the original alone with these quantized, at each of the choice's widths
                   and, within one, at each of its group sizes
    bits           what they have now
    promoted_from  what they had before gates failed and were repaired; None if nothing was
    group_size     what a search gave them; None if it chose none
    """

    linears: tuple[str, ...]
    losses: tuple[float, ...]
    bits: int
    promoted_from: int | None
    group_size: int | None = None


@dataclass(frozen=True, slots=True)
class WidthChoice:
    """Every unit's sensitivity and width; `widths` are those that were tried, rising.

    `group_sizes` are those tried at each width, falling; none where the recipe decided.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    widths: tuple[int, ...]
    units: tuple[UnitWidth, ...]
    group_sizes: tuple[int, ...] = ()

    @property
    def counts(self) -> str:
        """How many units have each width."""
        given = Counter((unit.bits, unit.group_size) for unit in self.units)
        places: list[tuple[int, int | None]] = [
            (bits, size) for bits in self.widths for size in (*self.group_sizes, None)
        ]
        counts = ", ".join(f"{given[place]} at {_phrase(*place)}" for place in places if place in given)
        return f"{len(self.units)} sets of linears: {counts}"

    @property
    def promotions(self) -> tuple[str, ...]:
        """A sentence for each unit that was promoted."""
        return tuple(
            f"{', '.join(unit.linears)}: promoted from {unit.promoted_from} to {unit.bits} bits"
            for unit in self.units
            if unit.promoted_from is not None
        )


def width_choice(sensitivity: Sensitivity, before: Sequence[Width], now: Sequence[Width]) -> WidthChoice:
    """The evidence of units that had the widths `before` any repair and have `now`."""
    rows = zip(sensitivity.units, sensitivity.losses, before, now, strict=True)
    units = tuple(
        UnitWidth(
            tuple(linear.name for linear in unit.linears),
            losses,
            width.bits,
            first.bits if first != width else None,
            width.group_size,
        )
        for unit, losses, first, width in rows
    )
    tried = sensitivity.widths
    return WidthChoice(
        tuple(dict.fromkeys(width.bits for width in tried)),
        units,
        tuple(dict.fromkeys(width.group_size for width in tried if width.group_size is not None)),
    )


def _phrase(bits: int, group_size: int | None) -> str:
    if group_size is None:
        return f"{bits} bits"
    return f"{bits} bits in {'rows' if group_size == -1 else f'groups of {group_size}'}"
