"""Frozen dataclasses from JSON values, with nothing missing, nothing unknown and nothing coerced."""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union

from gristmill.runtime.errors import InputError

__all__ = ["from_json"]

_T = TypeVar("_T")
_MOST = 2**63 - 1


def from_json(kind: type[_T], value: Any, where: str) -> _T:
    """The dataclass `kind` that `dataclasses.asdict` turned into `value`, before or after JSON.

    Fields may be dataclasses, strings, booleans, integers of 64 bits, finite
    floats, literals, tuples of one type, any of these or None, and one of several
    dataclasses, told apart by their fields. Raises
    InputError naming the field by its path from `where`.
    """
    if not isinstance(value, Mapping):
        raise InputError(where, found=_shown(value), expected="an object")
    expected = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if missing := sorted(set(expected) - set(value)):
        raise InputError(f"{where}: missing {', '.join(missing)}")
    if unknown := sorted(map(str, set(value) - set(expected))):
        raise InputError(f"{where}: unknown {', '.join(unknown)}", expected=f"only {', '.join(expected)}")
    hints = _hints(typing.cast(Any, kind))
    return kind(**{name: _read(hints[name], value[name], f"{where}.{name}") for name in expected})


@functools.cache  # a plan holds hundreds of a few classes, and reading hints is most of the work
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint):
        return from_json(typing.cast(type[Any], hint), value, where)
    if hint is float:
        return _read_float(value, where)
    if hint in (int, str, bool):
        if type(value) is not hint or (hint is int and abs(value) > _MOST):
            raise InputError(where, found=_shown(value), expected=_NAMES[hint])
        return value
    return _read_composed(hint, value, where)


def _read_composed(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool):
            raise InputError(where, found=_shown(value), expected=" or ".join(map(str, arguments)))
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(where, found=_shown(value), expected="a list")
        return tuple(_read(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    assert origin in (Union, types.UnionType), hint
    if value is None and type(None) in arguments:
        return None
    kinds = [argument for argument in arguments if argument is not type(None)]
    return _read(kinds[0] if len(kinds) == 1 else _nearest(kinds, value), value, where)


def _nearest(kinds: list[Any], value: Any) -> Any:
    """Of several dataclasses the first that shares most fields with `value`."""
    found = set(value) if isinstance(value, Mapping) else set()
    return max(kinds, key=lambda kind: len(found & {field.name for field in fields(kind)}))


def _read_float(value: Any, where: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or abs(value) > _MOST or not math.isfinite(value):
        raise InputError(where, found=_shown(value), expected=_NAMES[float])
    return float(value)


_NAMES = {int: "an integer", str: "a text", bool: "true or false", float: "a number"}


def _shown(value: Any) -> str:
    """A value in a few words, however large it is."""
    if isinstance(value, list | tuple | Mapping):
        return f"{type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
