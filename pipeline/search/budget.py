"""From a budget to widths: what each unit costs at each width, and the choice of least loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gristmill.pipeline.model import BuildModel, stored_bits
from gristmill.pipeline.search.allocate import Option, least_cost, least_loss
from gristmill.pipeline.search.size import fixed_bytes, unit_bytes
from gristmill.pipeline.search.stage import Sensitivity
from gristmill.pipeline.search.units import Unit, Width, model_units, with_widths
from gristmill.pipeline.search.widths import candidates
from gristmill.recipes.search import SearchBudget, SearchSettings
from gristmill.runtime.errors import RecipeError
from gristmill.runtime.formats.select import FormatName
from gristmill.runtime.scheme import QuantScheme
from gristmill.runtime.units import human_bytes, parse_size

__all__ = ["choose_widths", "require_possible"]

Cost = Callable[[Unit, Width], float]


def choose_widths(
    model: BuildModel, sensitivity: Sensitivity, budget: SearchBudget, format: FormatName
) -> tuple[Width, ...]:
    """The width of each unit: least summed loss within the budget, or fewest bits within a `kl_mean`.

    Raises RecipeError, naming the nearest that can be met, for a loss that no choice keeps to.
    """
    cost = _cost(model, budget, format)
    units = [
        [
            Option(place, cost(unit, width), loss)
            for place, (width, loss) in enumerate(zip(sensitivity.widths, losses, strict=True))
        ]
        for unit, losses in zip(sensitivity.units, sensitivity.losses, strict=True)
    ]
    if budget.kl_mean is None:
        chosen = least_loss(units, _limit(model, budget, format))
    else:
        least = sum(min(option.loss for option in options) for options in units)
        if least > budget.kl_mean:
            raise _unmet("kl_mean", f"{budget.kl_mean:g}", f"{least:.2g} nats or more")
        chosen = least_cost(units, budget.kl_mean)
    return tuple(sensitivity.widths[option.width] for option in chosen)


def require_possible(model: BuildModel, search: SearchSettings, format: FormatName) -> None:
    """Raise RecipeError, naming the nearest that can be met, for a budget below the narrowest widths.

    A `kl_mean` is judged by `choose_widths`: only measured losses tell.
    """
    budget = search.budget
    if budget.kl_mean is not None:
        return
    cost = _cost(model, budget, format)
    units, widths = model_units(model.plan, model.schemes), candidates(search)
    least = sum(min(cost(unit, width) for width in widths) for unit in units)
    if least <= _limit(model, budget, format):
        return
    if budget.size is not None:
        smallest = least + fixed_bytes(model, format)
        raise _unmet("size", budget.size, f"{human_bytes(smallest + 0.05 * 10**6)} or more")
    nearest = least / stored_bits(model.plan.linears, model.schemes)[1]
    raise _unmet("bits_per_weight", f"{budget.bits_per_weight:g}", f"{nearest + 0.0005:.3f} or more")


def _unmet(name: str, found: str, expected: str) -> RecipeError:
    return RecipeError(
        f"quantize.search.budget.{name} can't be met",
        found=found,
        expected=expected,
        hint="or change quantize.search.bits or quantize.group_size",
    )


def _cost(model: BuildModel, budget: SearchBudget, format: FormatName) -> Cost:
    """Bytes of the checkpoint for a size, else stored bits."""
    if budget.size is not None:
        return lambda unit, width: float(unit_bytes(unit, model.schemes, width, format))
    return lambda unit, width: _bits(unit, model.schemes, width)


def _limit(model: BuildModel, budget: SearchBudget, format: FormatName) -> float:
    """What all units may cost together, as `_cost` counts."""
    if budget.size is not None:
        return float(parse_size(budget.size) - fixed_bytes(model, format))
    assert budget.bits_per_weight is not None  # a budget has one limit
    return budget.bits_per_weight * stored_bits(model.plan.linears, model.schemes)[1]


def _bits(unit: Unit, schemes: Mapping[str, QuantScheme | None], width: Width) -> float:
    own = {linear.name: schemes[linear.name] for linear in unit.linears}
    return stored_bits(unit.linears, with_widths(own, [unit], [width]))[0]
