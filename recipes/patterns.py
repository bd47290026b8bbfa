"""Patterns that choose layers by their dotted names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate

from gristmill.runtime.errors import RecipeError

__all__ = ["compile_pattern", "matching"]

_REGEX_MARK = "re:"


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The regular expression that a whole layer name must match.

    `re:...` is taken as it is; anything else is a glob in which `*` also
    crosses dots, so that `*.down_proj` names that linear of every layer.
    Raises RecipeError for an expression that doesn't compile.
    """
    if not pattern.startswith(_REGEX_MARK):
        return re.compile(translate(pattern))
    try:
        return re.compile(pattern.removeprefix(_REGEX_MARK))
    except re.error as error:
        raise RecipeError(
            "layer pattern", found=f'text "{pattern}"', expected=f"a regular expression ({error})"
        ) from error


def matching(pattern: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that `pattern` matches from end to end, in their order."""
    compiled = compile_pattern(pattern)
    return tuple(name for name in names if compiled.fullmatch(name))
