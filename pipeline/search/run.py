"""Choosing widths within a build: the search before quantizing, and the repair after a gate has failed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import get_args

from gristmill.pipeline.make import Made, Maker
from gristmill.pipeline.model import BuildModel
from gristmill.pipeline.quantize.settings import quantize_settings
from gristmill.pipeline.search.budget import choose_widths
from gristmill.pipeline.search.repair import fewest, first_guess, promoted
from gristmill.pipeline.search.stage import Sensitivity, measure_sensitivity
from gristmill.pipeline.search.units import Unit, Width, model_units, with_widths
from gristmill.pipeline.search.widths import WidthChoice, candidates, width_choice
from gristmill.recipes.rules import Bits

__all__ = ["repair", "search"]


def search(maker: Maker, model: BuildModel) -> tuple[BuildModel, WidthChoice]:
    """`model` at the widths that the recipe's search chooses. Raises RecipeError for an unmet budget."""
    settings = maker.recipe.quantize.search
    assert settings is not None
    sensitivity = _measure(maker, model, candidates(settings))
    widths = choose_widths(model, sensitivity, settings.budget, maker.recipe.checkpoint)
    choice = width_choice(sensitivity, widths, widths)
    maker.progress.note(f"search: {choice.counts}")
    changed = replace(model, schemes=with_widths(model.schemes, sensitivity.units, widths))
    return changed, choice


def repair(maker: Maker, made: Made) -> tuple[Made, WidthChoice]:
    """`made` with the fewest promotions that let all gates pass, or with all that there are.

    Each attempt keeps the layers in front of its first change. Every promotion is told.
    """
    current = _widths(made.model)
    search = maker.recipe.quantize.search
    all_bits = get_args(Bits) if search is None else search.bits
    least = min(width.bits for width in current)
    sensitivity = _measure(maker, made.model, [Width(bits) for bits in all_bits if bits >= least])
    steps = promoted(sensitivity, current)
    attempts: dict[int, Made] = {0: made}

    def passes(count: int) -> bool:
        maker.progress.note(f"repair: {count} of {len(steps) - 1} possible promotions")
        model = _at(made.model, sensitivity.units, current, steps[count])
        attempts[count] = maker.make(model, lambda stage: nullcontext(), made.quantized)
        return attempts[count].passed

    most = len(steps) - 1
    count = fewest(most, first_guess(sensitivity, steps, made.gates), passes)
    chosen = most if count is None else count
    choice = width_choice(sensitivity, current, steps[chosen])
    for promotion in choice.promotions:
        maker.progress.note(f"repair: {promotion}")
    return attempts[chosen], choice


def _measure(maker: Maker, model: BuildModel, widths: Sequence[Width]) -> Sensitivity:
    assert maker.samples is not None  # the recipe's rules
    settings = quantize_settings(maker.recipe, model.schemes)
    return measure_sensitivity(
        model,
        model.source.digest(),
        maker.samples,
        settings,
        widths,
        maker.contract,
        maker.stages,
        maker.progress,
    )


def _at(
    model: BuildModel, units: Sequence[Unit], current: Sequence[Width], widths: Sequence[Width]
) -> BuildModel:
    """`model`, whose units have the widths `current`, with those promoted that differ."""
    changed = [index for index, width in enumerate(widths) if width != current[index]]
    schemes = with_widths(model.schemes, [units[i] for i in changed], [widths[i] for i in changed])
    return replace(model, schemes=schemes)


def _widths(model: BuildModel) -> tuple[Width, ...]:
    """What each unit has: its widest linear's bits, where overrides part them; group sizes stay."""
    units = model_units(model.plan, model.schemes)
    return tuple(Width(max(_bits(model, linear.name) for linear in unit.linears)) for unit in units)


def _bits(model: BuildModel, name: str) -> int:
    scheme = model.schemes[name]
    assert scheme is not None  # a unit's linears are quantized
    return scheme.bits
