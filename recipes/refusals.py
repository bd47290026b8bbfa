"""How a schema rule says what it expected, in the form that fault reports print."""

from __future__ import annotations

from pydantic_core import PydanticCustomError

__all__ = ["REFUSAL", "refusal"]

REFUSAL = "refusal"


def refusal(expected: str, *, found: str | None = None, hint: str | None = None) -> PydanticCustomError:
    """The error that a pydantic validator raises; without `found`, the value itself is shown."""
    context = {"expected": expected}
    if found is not None:
        context["found"] = found
    if hint is not None:
        context["hint"] = hint
    return PydanticCustomError(REFUSAL, "{expected}", context)
