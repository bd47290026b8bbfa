"""JSON read without forgiveness: one value has one spelling, and a fault is named by file and rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from gristmill.runtime.errors import ArtifactError, InputError, InternalError
from gristmill.runtime.files import canonical_json

__all__ = ["parse_canonical", "parse_object", "to_canonical"]

T = TypeVar("T")


def parse_object(data: bytes, file: Path | str) -> dict[str, Any]:
    """A JSON object; duplicate keys, NaN and infinities are refused. Raises ArtifactError naming `file`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ArtifactError(f"{file}: duplicate key", found=repr(key), expected="each key once")
            found[key] = value
        return found

    def refuse_constant(text: str) -> NoReturn:
        raise ArtifactError(f"{file}: number", found=text, expected="a finite number")

    try:
        value = json.loads(data.decode(), object_pairs_hook=unique, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{file}: not JSON", found=str(error), expected="UTF-8 JSON") from error
    if not isinstance(value, dict):
        raise ArtifactError(f"{file}: not a JSON object", found=type(value).__name__)
    return value


def parse_canonical(adapter: TypeAdapter[T], data: bytes, file: Path | str) -> T:
    """The typed value that `data` spells canonically: unknown keys, wrong types and any other spelling
    of the same value raise ArtifactError naming `file` and the rule.
    """
    parse_object(data, file)
    value = _validated(adapter, data, file)
    if _dumped(adapter, value) != data:
        raise ArtifactError(
            f"{file}: not in canonical form",
            expected="every key written out, sorted keys, no spaces, shortest numbers, one final newline",
        )
    return value


def to_canonical(adapter: TypeAdapter[T], value: T, file: Path | str) -> bytes:
    """The one spelling of `value`; what `parse_canonical` would refuse raises ArtifactError here."""
    # The second dump writes an integer that stands for a float as a float.
    return _dumped(adapter, _validated(adapter, _dumped(adapter, value, file), file), file)


def _dumped(adapter: TypeAdapter[T], value: T, file: Path | str = "") -> bytes:
    try:
        plain = adapter.dump_python(value, mode="json", warnings=False)
    except PydanticSerializationError as error:
        raise InternalError(f"{file}: a value that JSON can't hold", found=str(error)) from error
    try:
        return canonical_json(plain)
    except ValueError as error:
        raise ArtifactError(f"{file}: number", found=str(error), expected="finite numbers") from error


def _validated(adapter: TypeAdapter[T], data: bytes, file: Path | str) -> T:
    return _checked(lambda: adapter.validate_json(data), file)


def _checked(validate: Callable[[], T], file: Path | str) -> T:
    try:
        return validate()
    except ValidationError as error:
        faults = [f"{_place(fault['loc'])}: {fault['msg']}" for fault in error.errors(include_url=False)]
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise ArtifactError(f"{file}: {faults[0]}{more}", details=faults) from error
    except InputError as error:
        raise ArtifactError(f"{file}: {error.what}", found=error.found, expected=error.expected) from error


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location if part != "[key]") or "the whole"
