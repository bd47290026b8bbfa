"""Read a recipe: a file or a shipped name, with `--set` overrides, into a checked `Recipe`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from gristmill.recipes.document import MAX_BYTES, parse_document
from gristmill.recipes.explain import explain
from gristmill.recipes.faults import recipe_error
from gristmill.recipes.overrides import apply_overrides
from gristmill.recipes.presets import preset_path
from gristmill.recipes.schema import Recipe
from gristmill.runtime.errors import RecipeError

__all__ = ["load_recipe", "parse_recipe"]

_SUFFIXES = (".yaml", ".yml")


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in the file `source`, or the shipped recipe of that name.

    `overrides` are `a.b=value` texts, applied in order. File paths come back
    absolute. Raises RecipeError with every fault in its details.
    """
    path = _find(source)
    return parse_recipe(_read(path), path.name, path.parent, overrides)


def parse_recipe(text: str, name: str, base: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in `text`; `name` labels its lines, `base` is where its relative paths start."""
    document = apply_overrides(parse_document(text, name), overrides)
    faults = list(document.faults)
    recipe: Recipe | None = None
    try:
        recipe = Recipe.model_validate(document.value, context={"base": base.absolute()})
    except ValidationError as error:
        reported = {fault.key for fault in faults}
        faults += [fault for fault in explain(document, error) if fault.key not in reported]
    if faults or recipe is None:
        raise recipe_error(name, faults)
    return recipe


def _find(source: str | Path) -> Path:
    path = Path(os.path.expanduser(source))
    if os.path.isfile(path):
        return path
    if os.path.isdir(path):
        raise RecipeError(f"recipe {source}", found="a folder", expected="a .yaml file")
    if isinstance(source, Path) or path.suffix in _SUFFIXES or len(path.parts) > 1:
        raise RecipeError(f"recipe {source}", found="no such file", expected="a .yaml file or a shipped name")
    return preset_path(source)


def _read(path: Path) -> str:
    if (size := path.stat().st_size) > MAX_BYTES:
        raise RecipeError(f"recipe {path}", found=f"{size} bytes", expected=f"at most {MAX_BYTES}")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise RecipeError(f"can't read recipe {path}", found=error.strerror) from error
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"recipe {path}", found=f"no UTF-8 at byte {error.start}", expected="UTF-8"
        ) from error
