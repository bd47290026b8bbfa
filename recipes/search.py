"""The `search` block of a recipe: a width for each part of the model, chosen under a budget."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from gristmill.recipes.refusals import refusal
from gristmill.recipes.rules import Bits, GroupSize
from gristmill.runtime.errors import InputError
from gristmill.runtime.units import parse_size

__all__ = ["SearchBudget", "SearchSettings"]

_CONFIG = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
_LEAST_WIDTHS = 2


def _readable_size(text: str) -> str:
    try:
        parse_size(text)
    except InputError as error:
        raise refusal(str(error.expected)) from error
    return text


class SearchBudget(BaseModel):
    """What the chosen widths may cost; exactly one limit."""

    model_config = _CONFIG

    bits_per_weight: float | None = Field(
        default=None, gt=0, description="stored bits of a quantized weight, on average"
    )
    size: Annotated[str, AfterValidator(_readable_size)] | None = Field(
        default=None, description="bytes of the checkpoint folder, such as 110MB"
    )
    kl_mean: float | None = Field(
        default=None, gt=0, description="summed loss of all parts, nats; an estimate, gates measure"
    )

    @property
    def limits(self) -> tuple[str, ...]:
        """The names of the limits that are set."""
        return tuple(name for name in type(self).model_fields if getattr(self, name) is not None)


class SearchSettings(BaseModel):
    """Which widths are tried, and what all of them together may cost."""

    model_config = _CONFIG

    budget: SearchBudget = Field(description="exactly one of bits_per_weight, size and kl_mean")
    bits: tuple[Bits, ...] = Field(default=(3, 4, 5, 6, 8), description="widths to choose from")
    group_size: tuple[GroupSize, ...] = Field(
        default=(), description="group sizes to choose from; without, quantize.group_size holds"
    )

    @field_validator("budget")
    @classmethod
    def _one_limit(cls, budget: SearchBudget) -> SearchBudget:
        if len(budget.limits) != 1:
            found = " and ".join(budget.limits) or "no limit"
            raise refusal("one of bits_per_weight, size and kl_mean", found=found)
        return budget

    @field_validator("bits")
    @classmethod
    def _rising(cls, bits: tuple[int, ...]) -> tuple[int, ...]:
        if len(bits) < _LEAST_WIDTHS or list(bits) != sorted(set(bits)):
            raise refusal("two widths at least, rising", found=str(list(bits)))
        return bits

    @field_validator("group_size")
    @classmethod
    def _different(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(sizes)) != len(sizes):
            raise refusal("each group size once", found=str(list(sizes)))
        return sizes
