"""Faults of a recipe: each with its place, key, what was found and what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.runtime.errors import RecipeError

__all__ = ["Fault", "Key", "key_text", "recipe_error"]

Key = tuple[str | int, ...]


def key_text(key: Key) -> str:
    """A key path as `--set` writes it: `calibration.prompts.0.share`."""
    return ".".join(map(str, key))


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `place` is `file:line`, or the `--set` that brought it in."""

    place: str
    key: Key
    found: str
    expected: str
    hint: str | None = None

    def error(self) -> RecipeError:
        """The fault as an error of its own."""
        what = f"{self.place}: {key_text(self.key)}" if self.key else self.place
        return RecipeError(what, found=self.found, expected=self.expected, hint=self.hint)


def recipe_error(name: str, faults: Sequence[Fault]) -> RecipeError:
    """One error for all `faults`, at least one; several are listed in its details."""
    if len(faults) == 1:
        return faults[0].error()
    return RecipeError(
        f"recipe {name} has {len(faults)} faults", details=[fault.error().line() for fault in faults]
    )
