"""Frozen dataclasses from JSON values, with nothing missing, nothing unknown and nothing coerced."""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union

from gristmill.runtime.errors import InputError

__all__ = ["from_json"]

_T = TypeVar("_T")
_Reader = Callable[[Any], Any]
_MOST = 2**63 - 1


def from_json(kind: type[_T], value: Any, where: str) -> _T:
    """The dataclass `kind` that `dataclasses.asdict` turned into `value`, before or after JSON.

    Fields may be dataclasses, strings, booleans, integers of 64 bits, finite
    floats, literals, tuples of one type, any of these or None, and one of several
    dataclasses, told apart by their fields. Raises
    InputError naming the field by its path from `where`.
    """
    try:
        return typing.cast(_T, _reader(typing.cast(Any, kind))(value))
    except InputError as error:
        raise _inside(where, error) from None


@functools.cache  # a plan holds ten thousands of a few classes: each type is looked at once
def _reader(hint: Any) -> _Reader:
    """What reads values of a type; its errors lack the path to them."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint):
        return _object_reader(typing.cast(type[Any], hint))
    if hint is float:
        return _read_float
    if hint in _NAMES:
        return functools.partial(_read_plain, hint)
    if origin is Literal:
        return functools.partial(_read_literal, arguments)
    if origin is tuple:
        return functools.partial(_read_list, _reader(arguments[0]))
    assert origin in (Union, types.UnionType), hint
    return _union_reader(arguments)


def _object_reader(kind: type[Any]) -> _Reader:
    hints = typing.get_type_hints(kind)
    readers = {
        field.name: (_as_it_is(hints[field.name]), _reader(hints[field.name])) for field in fields(kind)
    }

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise InputError("", found=_shown(value), expected="an object")
        if value.keys() != readers.keys():
            raise _wrong_fields(value, list(readers))
        arguments, name = [], ""
        try:
            for name, (plain, read_field) in readers.items():
                item = value[name]
                arguments.append(item if type(item) is plain else read_field(item))
        except InputError as error:
            raise _inside(f".{name}", error) from None
        return kind(*arguments)

    return read


def _as_it_is(hint: Any) -> type[Any] | None:
    """The type whose every value is one of `hint`: most of a plan needs no more than a look at it."""
    return hint if hint in (str, bool) else type(None) if type(None) in typing.get_args(hint) else None


def _union_reader(arguments: tuple[Any, ...]) -> _Reader:
    kinds = [argument for argument in arguments if argument is not type(None)]
    readers = list(map(_reader, kinds))
    optional = len(kinds) < len(arguments)

    def read(value: Any) -> Any:
        if value is None and optional:
            return None
        return readers[0 if len(kinds) == 1 else _nearest(kinds, value)](value)

    return read


def _nearest(kinds: list[Any], value: Any) -> int:
    """Of several dataclasses the first that shares most fields with `value`."""
    found = set(value) if isinstance(value, dict) else set()
    shared = [len(found & {field.name for field in fields(kind)}) for kind in kinds]
    return shared.index(max(shared))


def _read_plain(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind or (kind is int and abs(value) > _MOST):
        raise InputError("", found=_shown(value), expected=_NAMES[kind])
    return value


def _read_literal(known: tuple[Any, ...], value: Any) -> Any:
    if value not in known or isinstance(value, bool):
        raise InputError("", found=_shown(value), expected=" or ".join(map(str, known)))
    return value


def _read_list(read: _Reader, value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise InputError("", found=_shown(value), expected="a list")
    items: list[Any] = []
    try:
        for item in value:
            items.append(read(item))
    except InputError as error:
        raise _inside(f"[{len(items)}]", error) from None
    return tuple(items)


def _read_float(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or abs(value) > _MOST or not math.isfinite(value):
        raise InputError("", found=_shown(value), expected=_NAMES[float])
    return float(value)


_NAMES = {int: "an integer", str: "a text", bool: "true or false", float: "a number"}


def _wrong_fields(value: dict[str, Any], expected: list[str]) -> InputError:
    if missing := sorted(set(expected) - set(value)):
        return InputError(f": missing {', '.join(missing)}")
    unknown = sorted(map(str, set(value) - set(expected)))
    return InputError(f": unknown {', '.join(unknown)}", expected=f"only {', '.join(expected)}")


def _inside(place: str, error: InputError) -> InputError:
    return InputError(f"{place}{error.what}", found=error.found, expected=error.expected)


def _shown(value: Any) -> str:
    """A value in a few words, however large it is."""
    if isinstance(value, list | tuple | dict):
        return f"{type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
