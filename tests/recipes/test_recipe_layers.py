"""Patterns choose layers; what matches nothing, contradicts or does not divide is refused before work."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.recipes.layers import assign_schemes
from gristmill.recipes.patterns import matching
from gristmill.recipes.quantize import QuantizeSettings
from gristmill.runtime.errors import RecipeError
from gristmill.runtime.scheme import QuantScheme

SHAPES = {
    f"model.layers.{layer}.{name}": (inputs, 576)
    for layer in range(3)
    for name, inputs in (
        ("self_attn.q_proj", 576),
        ("self_attn.o_proj", 576),
        ("mlp.gate_proj", 576),
        ("mlp.down_proj", 1536),
    )
}


def settings(**changes: Any) -> QuantizeSettings:
    values = {"scheme": "W4A16_ASYM", "method": "awq", "group_size": 64, **changes}
    return QuantizeSettings.model_validate(values)


def refusal(chosen: QuantizeSettings) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        assign_schemes(SHAPES, chosen)
    return caught.value


def test_every_linear_gets_the_scheme_by_default() -> None:
    schemes = assign_schemes(SHAPES, settings())
    assert list(schemes) == list(SHAPES)
    assert set(schemes.values()) == {QuantScheme(4, 64, symmetric=False)}


def test_the_storage_type_of_scales_is_the_caller_s() -> None:
    schemes = assign_schemes(SHAPES, settings(), scale_dtype="float16")
    assert {scheme.scale_dtype for scheme in schemes.values() if scheme} == {"float16"}


def test_a_group_size_of_a_search_must_divide_as_the_recipe_s_own() -> None:
    search = {"budget": {"bits_per_weight": 4.5}, "group_size": (64, 128)}
    assert "group size 128 does not divide the 576 inputs" in str(refusal(settings(search=search)))
    search["group_size"] = (64, 96)
    schemes = assign_schemes(SHAPES, settings(search=search))
    assert {scheme.group_size for scheme in schemes.values() if scheme} == {64}


def test_skipped_layers_get_none() -> None:
    schemes = assign_schemes(SHAPES, settings(skip=("lm_head", "model.layers.0.*")))
    skipped = [name for name, scheme in schemes.items() if scheme is None]
    assert skipped == [name for name in SHAPES if ".layers.0." in name]


def test_overrides_that_do_not_disagree_add_up() -> None:
    chosen = settings(
        overrides=(
            {"match": "*.down_proj", "bits": 8, "group_size": 128},
            {"match": ("model.layers.1.mlp.down_proj", "*.o_proj"), "symmetric": True},
        )
    )
    schemes = assign_schemes(SHAPES, chosen)
    both, down = schemes["model.layers.1.mlp.down_proj"], schemes["model.layers.0.mlp.down_proj"]
    assert both is not None
    assert down is not None
    assert both == QuantScheme(8, 128, symmetric=True)
    assert down == QuantScheme(8, 128, symmetric=False)


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("*.down_proj", 3),
        ("model.layers.1.*", 4),
        ("model.layers.[01].mlp.*", 4),
        ("down_proj", 0),
        (r"re:model\.layers\.[02]\..*_proj", 8),
        ("re:down_proj", 0),
        ("MODEL.*", 0),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, count: int) -> None:
    assert len(matching(pattern, SHAPES)) == count


def test_each_pattern_must_match_something() -> None:
    error = refusal(settings(skip=("lm_head", "*.up_proj"), overrides=({"match": "down_proj", "bits": 8},)))
    assert str(error) == "quantize: 2 faults"
    assert [line.partition(";")[0] for line in error.details] == [
        'the pattern "*.up_proj" matches no layer',
        'the pattern "down_proj" matches no layer',
    ]
    assert error.details[1].endswith(".mlp.down_proj")


def test_two_overrides_that_disagree_are_named_with_the_layer() -> None:
    chosen = settings(
        overrides=({"match": "*.down_proj", "bits": 8}, {"match": "model.layers.2.*", "bits": 4}),
    )
    assert str(refusal(chosen)) == (
        'quantize: model.layers.2.mlp.down_proj gets bits 8 from "*.down_proj" and 4 from "model.layers.2.*"'
    )


def test_a_layer_both_skipped_and_overridden_is_refused() -> None:
    chosen = settings(skip=("lm_head", "model.layers.0.*"), overrides=({"match": "*_proj", "bits": 8},))
    assert str(refusal(chosen)) == (
        "quantize: model.layers.0.self_attn.q_proj (and 3 more) is skipped by "
        '"model.layers.0.*" and overridden by "*_proj"'
    )


def test_the_head_must_be_skipped() -> None:
    assert "lm_head is not skipped" in str(refusal(settings(skip=())))


def test_something_must_be_left() -> None:
    assert "found every layer" in str(refusal(settings(skip=("*",))))


def test_a_group_size_that_does_not_divide_names_those_that_fit_all_layers() -> None:
    assert str(refusal(settings(group_size=128))) == (
        "quantize: group size 128 does not divide the 576 inputs of model.layers.0.self_attn.q_proj "
        "(9 of 12 layers); fitting all: 16, 32, 64, 96, 192, -1"
    )


def test_every_group_size_that_does_not_divide_is_reported() -> None:
    chosen = settings(group_size=100, overrides=({"match": "*.down_proj", "group_size": 1000},))
    assert len(refusal(chosen).details) == 2


def test_one_group_a_row_always_divides() -> None:
    assert all(assign_schemes({"a.b": (7, 3)}, settings(group_size=-1)).values())
