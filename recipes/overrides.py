"""`--set a.b=c`: values that replace those of the recipe file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gristmill.recipes.document import Document, parse_value
from gristmill.recipes.faults import Fault, Key
from gristmill.runtime.errors import RecipeError

__all__ = ["apply_overrides"]


class _BadPathError(Exception):
    """A path leads through something that has no such part."""

    def __init__(self, key: Key, found: str, expected: str) -> None:
        super().__init__(found)
        self.fault = (key, found, expected)


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """`document` with each `path=value` applied in turn; their faults are added to its faults.

    A path is dotted, with list items by number (`calibration.prompts.0.share`);
    a value is YAML; `null` removes the key.
    """
    for override in overrides:
        document = _apply(document, override)
    return document


def _apply(document: Document, override: str) -> Document:
    label = f"--set {override}"
    path, separator, text = override.partition("=")
    key: Key = tuple(int(part) if part.isdecimal() else part for part in path.strip().split("."))
    if not separator or "" in key:
        return _with_fault(document, Fault(label, (), "no path and value", "a.b=value"))
    if not text.strip():
        return _with_fault(document, Fault(label, (), "no value", "a.b=value, or a.b=null to remove the key"))
    try:
        parsed = parse_value(text, label)
        value = _replaced(document.value, key, 0, parsed.value)
    except RecipeError as error:
        return _with_fault(document, Fault(label, (), str(error.found), str(error.expected)))
    except _BadPathError as error:
        return _with_fault(document, Fault(label, *error.fault))
    faults = tuple(replace(fault, key=(*key, *fault.key)) for fault in parsed.faults)
    kept = {place: origin for place, origin in document.origins.items() if place[: len(key)] != key}
    made = {key[:length]: label for length in range(1, len(key) + 1)}
    return replace(document, value=value, origins=made | kept, faults=(*document.faults, *faults))


def _with_fault(document: Document, fault: Fault) -> Document:
    return replace(document, faults=(*document.faults, fault))


def _replaced(holder: Any, key: Key, depth: int, value: Any) -> Any:
    """`holder` with the value at `key[depth:]` replaced, or removed where `value` is None."""
    if depth == len(key):
        return value
    part = key[depth]
    if isinstance(holder, tuple):
        return _replaced_item(holder, key, depth, value)
    if not isinstance(holder, dict):
        raise _BadPathError(key[:depth], f"a value without parts, at {part}", "a path to a key")
    inner = _replaced(holder.get(str(part), {}), key, depth + 1, value)
    rest = {name: held for name, held in holder.items() if name != str(part) or inner is not None}
    return rest if inner is None else {**rest, str(part): inner}


def _replaced_item(holder: tuple[Any, ...], key: Key, depth: int, value: Any) -> tuple[Any, ...]:
    part = key[depth]
    if not isinstance(part, int) or part >= len(holder):
        found = f"{len(holder)} items, and no {part}"
        raise _BadPathError(key[:depth], found, f"a number from 0 to {len(holder) - 1}")
    inner = _replaced(holder[part], key, depth + 1, value)
    return (*holder[:part], *(() if inner is None else (inner,)), *holder[part + 1 :])
