"""How many calibration tokens each expert of a mixture saw, and what is said of those that saw too few."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from gristmill.runtime.model_plan import LinearPlan

__all__ = ["ExpertCoverage", "expert_name", "uncovered"]

_NAMED = 4


@dataclass(frozen=True, slots=True)
class ExpertCoverage:
    """`routed` maps an expert to the calibration tokens that the router sent to it.

    For those with fewer than `minimum`, all tokens of their layer stood for the missing ones.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    minimum: int
    routed: Mapping[str, int]

    @property
    def below(self) -> tuple[str, ...]:
        """The experts that saw fewer than the minimum, in the model's order."""
        return tuple(name for name, tokens in self.routed.items() if tokens < self.minimum)


def expert_name(linear: LinearPlan) -> str:
    """The expert that a linear belongs to: `model.layers.3.mlp.experts.7` of its `up_proj`."""
    return linear.name.rpartition(".")[0]


def uncovered(layer: int, routed: Mapping[str, int], minimum: int) -> Iterator[str]:
    """A note on the experts of one layer that saw fewer than `minimum` tokens, if there are any."""
    below = {name.rpartition(".")[2]: tokens for name, tokens in routed.items() if tokens < minimum}
    if not below:
        return
    named = ", ".join(f"{name} ({tokens})" for name, tokens in list(below.items())[:_NAMED])
    more = f" and {len(below) - _NAMED} more" if len(below) > _NAMED else ""
    yield (
        f"layer {layer}: {len(below)} of {len(routed)} experts saw fewer than {minimum} calibration tokens, "
        f"so that others of the layer counted too: {named}{more}"
    )
