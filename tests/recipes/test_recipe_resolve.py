"""The resolved recipe is the same on every machine, complete, and loads again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import yaml

from gristmill.recipes import load_recipe, parse_recipe, resolved_yaml

WriteRecipe = Callable[[str], Path]


def test_bytes_do_not_depend_on_the_folder(
    write_recipe: WriteRecipe, recipe_text: str, tmp_path: Path
) -> None:
    first = write_recipe(recipe_text)
    elsewhere = tmp_path / "elsewhere" / "deep"
    elsewhere.mkdir(parents=True)
    shutil.copytree(tmp_path / "prompts", elsewhere / "prompts")
    second = Path(shutil.copy(first, elsewhere / "other-name.yaml"))
    assert resolved_yaml(load_recipe(first)) == resolved_yaml(load_recipe(second))


def test_no_path_of_this_machine_is_in_it(
    write_recipe: WriteRecipe, recipe_text: str, tmp_path: Path
) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside.jsonl"
    outside.write_text("{}\n")
    model = tmp_path.parent / f"{tmp_path.name}-model"
    model.mkdir()
    overrides = [f"calibration.prompts.0.path={outside}", f"golden.prompts={outside}", f"model={model}"]
    resolved = resolved_yaml(load_recipe(write_recipe(recipe_text), overrides))
    assert str(tmp_path.parent).encode() not in resolved
    assert yaml.safe_load(resolved)["calibration"]["prompts"][0]["path"] == outside.name


def test_changed_content_changes_it(write_recipe: WriteRecipe, recipe_text: str, tmp_path: Path) -> None:
    path = write_recipe(recipe_text)
    before = resolved_yaml(load_recipe(path))
    (tmp_path / "prompts" / "notes.txt").write_text("other notes\n")
    assert resolved_yaml(load_recipe(path)) != before


def test_the_tag_is_no_part_of_it(write_recipe: WriteRecipe, recipe_text: str) -> None:
    path = write_recipe(recipe_text)
    assert resolved_yaml(load_recipe(path)) == resolved_yaml(load_recipe(path, ["tag=v2"]))


def test_a_named_scheme_and_its_spelling_resolve_alike(write_recipe: WriteRecipe, recipe_text: str) -> None:
    spelled = recipe_text.replace("scheme: W4A16_ASYM", "bits: 4\n  symmetric: false")
    named = resolved_yaml(load_recipe(write_recipe(recipe_text)))
    assert resolved_yaml(load_recipe(write_recipe(spelled))) == named


def test_it_loads_again_and_resolves_to_itself(
    write_recipe: WriteRecipe, recipe_text: str, tmp_path: Path
) -> None:
    resolved = resolved_yaml(load_recipe(write_recipe(recipe_text)))
    again = parse_recipe(resolved.decode(), "resolved.yaml", tmp_path)
    assert resolved_yaml(again) == resolved
