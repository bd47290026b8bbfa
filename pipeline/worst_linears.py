"""The linears that lost most in quantization."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["worst_linears"]


def worst_linears(errors: Mapping[str, float], count: int) -> list[tuple[str, float]]:
    """The `count` largest of the errors by linear, the largest first, equal ones by name."""
    return sorted(errors.items(), key=lambda item: (-item[1], item[0]))[:count]
