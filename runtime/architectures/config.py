"""Typed reads from a `config.json`: a wrong or missing value is named by its key.

A dot in a key leads into a nested object, as in `rope_scaling.factor`. A null
counts as missing, as it does in transformers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from gristmill.runtime.errors import ModelError, UnsupportedError

__all__ = ["describe", "read_choice", "read_float", "read_int", "read_switch"]

_LONGEST_VALUE = 80


def describe(value: object) -> str:
    """A value for an error message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def read_int(
    config: Mapping[str, Any],
    key: str,
    default: int | None = None,
    *,
    minimum: int = 1,
    maximum: int = 2**31 - 1,
) -> int:
    """The whole number at `key`, `minimum` to `maximum`; required where there is no `default`."""
    expected = f"a whole number from {minimum} to {maximum}"
    value = _present(config, key, default, expected)
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise ModelError(f"config.json: {key}", found=describe(value), expected=expected)
    return value


def read_float(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """The positive, finite number at `key`; required where there is no `default`."""
    value = _present(config, key, default, "a positive number")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise ModelError(f"config.json: {key}", found=describe(value), expected="a positive number")
    return float(value)


def read_switch(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """The true or false at `key`."""
    value = _present(config, key, default, "true or false")
    if not isinstance(value, bool):
        raise ModelError(f"config.json: {key}", found=describe(value), expected="true or false")
    return value


def read_choice(
    config: Mapping[str, Any], key: str, choices: Iterable[str], default: str | None = None
) -> str:
    """The text at `key`, one of `choices`; a text that is none of them raises UnsupportedError."""
    listed = ", ".join(choices)
    value = _present(config, key, default, f"one of {listed}")
    if not isinstance(value, str):
        raise ModelError(f"config.json: {key}", found=describe(value), expected=f"one of {listed}")
    if value not in choices:
        raise UnsupportedError(f"config.json: {key}", found=describe(value), expected=f"one of {listed}")
    return value


def _present(config: Mapping[str, Any], key: str, default: object, expected: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is not None:
        return value
    if default is None:
        raise ModelError(f"config.json: {key} is missing", expected=expected)
    return default
