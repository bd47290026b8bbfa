"""The search block and auto_repair: what fits together, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gristmill.recipes import Recipe, load_recipe
from gristmill.recipes.resolve import resolved_yaml
from gristmill.runtime.errors import RecipeError

WriteRecipe = Callable[[str], Path]
BITS = "quantize.search.budget.bits_per_weight=4.5"
KL = "quantize.search.budget.kl_mean=0.05"
REPAIR = "validate.auto_repair=true"


@pytest.fixture
def load(write_recipe: WriteRecipe, recipe_text: str) -> Callable[..., Recipe]:
    """The small recipe with changes as on the command line."""
    path = write_recipe(recipe_text)
    return lambda *changes: load_recipe(path, changes)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_every_packed_width_is_a_width_of_recipes(load: Callable[..., Recipe], bits: int) -> None:
    changes = ("quantize.scheme=null", f"quantize.bits={bits}", "quantize.symmetric=true")
    assert load(*changes).quantize.bits == bits


def test_a_search_reads_back_from_the_resolved_recipe(
    load: Callable[..., Recipe], write_recipe: WriteRecipe
) -> None:
    changes = ("quantize.search.bits=[3, 4, 8]", "quantize.search.group_size=[64, -1]")
    recipe = load("quantize.search.budget.size=110MB", *changes)
    again = load_recipe(write_recipe(resolved_yaml(recipe).decode()))
    assert again.quantize.search == recipe.quantize.search


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ([BITS, KL], "search.budget; found bits_per_weight and kl_mean; expected one of"),
        (["quantize.search.budget={}"], "search.budget; found no limit; expected one of"),
        (["quantize.search.budget.size=huge"], 'budget.size; found text "huge"; expected a size such as'),
        ([BITS, "quantize.search.bits=[8, 4]"], r"search.bits; found \[8, 4\]; expected two widths at least"),
        (
            [BITS, "quantize.search.bits=[4, 7]"],
            r"search.bits.1; found number 7; expected 2, 3, 4, 5, 6 or 8",
        ),
        (
            [BITS, "quantize.search.group_size=[64, 64]"],
            "group_size; found .64, 64.; expected each group size",
        ),
        (
            [BITS, "quantize.search.group_size=[0]"],
            "group_size.0; found number 0; expected a positive number",
        ),
        (
            [BITS, "quantize.search.group_size=[64]", "quantize.overrides=[{match: '*.o', group_size: 32}]"],
            "search; found both; expected no group_size",
        ),
        ([BITS, "calibration=null"], "found a search without; expected a calibration block"),
        ([BITS, "quantize.overrides=[{match: '*.q_proj', bits: 8}]"], "search; found both; expected no bits"),
        ([BITS, "checkpoint=awq"], "found awq for widths that a search chooses"),
        ([REPAIR, "compile=[awq]"], "found awq for widths that auto_repair chooses"),
        ([REPAIR, "validate.gates={}"], "auto_repair; found auto_repair without gates; expected gates"),
        ([BITS, REPAIR], "found auto_repair beside a budget of bits_per_weight, which it would exceed"),
        (
            [KL, "validate.gates={kl_mean: '< 0.04'}"],
            "found the gate kl_mean < 0.04 beside a budget of 0.05; expected a budget that the gate allows",
        ),
        (
            [REPAIR, "quantize.method=rtn", "calibration=null"],
            "found auto_repair without; expected a calibration block",
        ),
        (
            [REPAIR, "quantize={scheme: W8A8, method: smoothquant}"],
            "found auto_repair of W8A8, whose width is fixed",
        ),
        (
            ["quantize={scheme: W8A8, method: smoothquant, search: {budget: {kl_mean: 0.1}}}"],
            "found a search; expected no search with W8A8",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(
    load: Callable[..., Recipe], changes: list[str], fault: str
) -> None:
    with pytest.raises(RecipeError, match=fault):
        load(*changes)


@pytest.mark.parametrize("gate", ["< 0.05", "< 0.04"])
def test_a_budget_of_loss_may_be_repaired(load: Callable[..., Recipe], gate: str) -> None:
    assert load(KL, REPAIR, f"validate.gates={{kl_mean: '{gate}'}}").repairs


def test_a_budget_may_be_all_that_the_gate_allows(load: Callable[..., Recipe]) -> None:
    assert load(KL, "validate.gates={kl_mean: '<= 0.05'}").quantize.search is not None
