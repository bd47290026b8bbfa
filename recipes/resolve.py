"""The resolved recipe: what goes into the artifact, the same bytes on every machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from gristmill.recipes.schema import Recipe
from gristmill.runtime.files import sha256_file

__all__ = ["resolved_dict", "resolved_yaml"]


def resolved_yaml(recipe: Recipe) -> bytes:
    """`recipe` with every default written out, as YAML that loads again beside the same files.

    Files keep their path relative to the recipe where they lie below it, else
    their name alone; prompts and data are pinned by `sha256`. The tag is left out: it points
    at an artifact and is no part of it.
    """
    text = yaml.safe_dump(resolved_dict(recipe), sort_keys=False, allow_unicode=True, width=110)
    return text.encode()


def resolved_dict(recipe: Recipe) -> dict[str, Any]:
    """The content of `resolved_yaml` as plain JSON-ready values."""
    data = recipe.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"tag"})
    data["model"] = _portable_model(recipe)
    if recipe.quantize.type == "int" and recipe.quantize.activation is None:
        data["quantize"].pop("scheme", None)  # spelled out by the other keys
    for block, key in (("calibration", "prompts"), ("validate", "data"), ("validate", "tasks")):
        for entry in data.get(block, {}).get(key, ()):
            path = Path(entry["path"])
            entry["path"] = _portable(path, recipe.base)
            entry["sha256"] = sha256_file(path)
    if recipe.golden.prompts is not None:
        data["golden"]["prompts"] = _portable(recipe.golden.prompts, recipe.base)
    return data


def _portable(path: Path, base: Path) -> str:
    base = base.resolve()
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else path.name


def _portable_model(recipe: Recipe) -> str:
    """The model as written, but for a local path, which loses its machine."""
    local = recipe.base / os.path.expanduser(recipe.model)
    if recipe.model.startswith("package:") or not os.path.exists(local):
        return recipe.model
    return _portable(local.resolve(), recipe.base)
