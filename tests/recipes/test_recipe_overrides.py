"""`--set` replaces values by path, and its faults are labelled as its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gristmill.recipes import Recipe, load_recipe
from gristmill.runtime.errors import RecipeError

WriteRecipe = Callable[[str], Path]
Load = Callable[..., Recipe]


@pytest.fixture
def load(write_recipe: WriteRecipe, recipe_text: str) -> Load:
    path = write_recipe(recipe_text)
    return lambda *overrides: load_recipe(path, overrides)


def refusal(load: Load, *overrides: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        load(*overrides)
    return caught.value


def test_values_are_yaml(load: Load) -> None:
    recipe = load("calibration.samples=8", "calibration.pack=false", "quantize.skip=[lm_head, '*.o_proj']")
    assert recipe.calibration is not None
    assert (recipe.calibration.samples, recipe.calibration.pack) == (8, False)
    assert recipe.quantize.skip == ("lm_head", "*.o_proj")


def test_list_items_go_by_number(load: Load) -> None:
    recipe = load("calibration.prompts.0.share=1.4")
    assert recipe.calibration is not None
    assert [prompt.share for prompt in recipe.calibration.prompts] == [1.4, 0.6]


def test_a_block_that_is_not_there_is_made(load: Load) -> None:
    assert load("golden.count=2").golden.count == 2


def test_null_removes_the_key(load: Load) -> None:
    recipe = load("validate.gates.kl_mean=null", "calibration.prompts.1=null")
    assert recipe.validation is not None
    assert recipe.calibration is not None
    assert recipe.validation.gates.kl_mean is None
    assert len(recipe.calibration.prompts) == 1


def test_the_last_of_two_wins(load: Load) -> None:
    recipe = load("name=one", "name=two")
    assert recipe.name == "two"


def test_a_value_may_hold_an_equals_sign(load: Load) -> None:
    recipe = load('validate.gates.kl_mean="<= 0.3"')
    assert recipe.validation is not None
    assert recipe.validation.gates.all[0].operator == "<="


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "calibration.sampels=8",
            "--set calibration.sampels=8: calibration.sampels; found an unknown key; "
            "expected one of prompts, samples, max_tokens, seed, pack, min_expert_tokens; "
            "did you mean samples?",
        ),
        (
            "validte.gates.kl_mean='< 1'",
            "--set validte.gates.kl_mean='< 1': validte; found an unknown key; expected one of name, tag, "
            "model, calibration, quantize, kv_cache, validate, checkpoint, compile, golden; "
            "did you mean validate?",
        ),
        (
            "calibration.samples='8'",
            "--set calibration.samples='8': calibration.samples; found text \"8\"; expected a number; "
            "write it without quotes",
        ),
        (
            "calibration.prompts.2.share=1",
            "--set calibration.prompts.2.share=1: calibration.prompts; found 2 items, and no 2; "
            "expected a number from 0 to 1",
        ),
        (
            "calibration.prompts.first.share=1",
            "--set calibration.prompts.first.share=1: calibration.prompts; found 2 items, and no first; "
            "expected a number from 0 to 1",
        ),
        (
            "name.first=x",
            "--set name.first=x: name; found a value without parts, at first; expected a path to a key",
        ),
        ("calibration.samples", "--set calibration.samples; found no path and value; expected a.b=value"),
        ("=8", "--set =8; found no path and value; expected a.b=value"),
        ("a..b=8", "--set a..b=8; found no path and value; expected a.b=value"),
        (
            "calibration.samples=",
            "--set calibration.samples=; found no value; expected a.b=value, or a.b=null to remove the key",
        ),
        (
            "compile=[awq, null]",
            "--set compile=[awq, null]: compile.1; found nothing; expected a value, or no such key",
        ),
    ],
)
def test_a_fault_of_an_override_names_the_override(load: Load, override: str, line: str) -> None:
    assert str(refusal(load, override)) == line


def test_a_value_that_is_no_yaml_is_refused(load: Load) -> None:
    assert str(refusal(load, "compile=[awq")).startswith("--set compile=[awq; found ")


def test_faults_of_file_and_overrides_come_together(write_recipe: WriteRecipe, recipe_text: str) -> None:
    path = write_recipe(recipe_text.replace("samples: 16", "samples: -1"))
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, ["quantize.method=best", "nonsense"])
    assert [line.split(";")[0] for line in caught.value.details] == [
        "--set nonsense",
        "recipe.yaml:7: calibration.samples",
        "--set quantize.method=best: quantize.method",
    ]
