"""The recipes that come with the package, by name."""

from __future__ import annotations

import difflib
from pathlib import Path

from gristmill.runtime.errors import RecipeError

__all__ = ["preset_names", "preset_path", "presets_folder"]

_FOLDER = Path(__file__).parent / "files"


def preset_names() -> tuple[str, ...]:
    """Names of the shipped recipes, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def presets_folder() -> Path:
    """Where the shipped recipes and their prompts lie."""
    return _FOLDER


def preset_path(name: str) -> Path:
    """The file of the shipped recipe `name`. Raises RecipeError listing those that exist."""
    names = preset_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        raise RecipeError(
            f"recipe {name}",
            found="no such file and no shipped recipe of that name",
            expected="a .yaml file, or one of " + ", ".join(names),
            hint=f"did you mean {close[0]}?" if close else None,
        )
    return _FOLDER / f"{name}.yaml"
