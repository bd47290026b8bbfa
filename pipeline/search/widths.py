"""The widths of a build's units and what speaks for them: the evidence that an artifact carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from gristmill.pipeline.search.stage import Sensitivity

__all__ = ["UnitWidth", "WidthChoice", "width_choice"]


@dataclass(frozen=True, slots=True)
class UnitWidth:
    """Linears that share a width.

    losses         nats a token of the original alone with these quantized, at each of the choice's widths
    bits           what they have now
    promoted_from  what they had before gates failed and were repaired; None if nothing was
    """

    linears: tuple[str, ...]
    losses: tuple[float, ...]
    bits: int
    promoted_from: int | None


@dataclass(frozen=True, slots=True)
class WidthChoice:
    """Every unit's sensitivity and width; `widths` are those that were tried, rising."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    widths: tuple[int, ...]
    units: tuple[UnitWidth, ...]

    @property
    def counts(self) -> str:
        """How many units have each width."""
        given = [unit.bits for unit in self.units]
        counts = ", ".join(f"{given.count(bits)} at {bits} bits" for bits in self.widths if bits in given)
        return f"{len(given)} sets of linears: {counts}"

    @property
    def promotions(self) -> tuple[str, ...]:
        """A sentence for each unit that was promoted."""
        return tuple(
            f"{', '.join(unit.linears)}: promoted from {unit.promoted_from} to {unit.bits} bits"
            for unit in self.units
            if unit.promoted_from is not None
        )


def width_choice(sensitivity: Sensitivity, before: Sequence[int], now: Sequence[int]) -> WidthChoice:
    """The evidence of units that had the widths `before` any repair and have `now`."""
    rows = zip(sensitivity.units, sensitivity.losses, before, now, strict=True)
    return WidthChoice(
        sensitivity.widths,
        tuple(
            UnitWidth(
                tuple(linear.name for linear in unit.linears), losses, bits, first if first != bits else None
            )
            for unit, losses, first, bits in rows
        ),
    )
