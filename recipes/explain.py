"""Turn pydantic's errors into faults that name the line, the key and the nearest valid name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gristmill.recipes.document import Document
from gristmill.recipes.faults import Fault, Key, key_text
from gristmill.recipes.refusals import REFUSAL
from gristmill.recipes.schema import Recipe

__all__ = ["explain", "schema_fields"]

_UNQUOTE = "write it without quotes"
_NUMBERS = {"int_type", "float_type"}
_EXPECTED = {
    "int_type": "a number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list",
    "model_type": "keys and values",
    "dict_type": "keys and values",
    "model_attributes_type": "keys and values",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("gt", "a number above {}"),
    "greater_than_equal": ("ge", "at least {}"),
    "less_than": ("lt", "a number below {}"),
    "less_than_equal": ("le", "at most {}"),
    "too_short": ("min_length", "a list of at least {}"),
    "string_too_short": ("min_length", "text of at least {} characters"),
    "string_pattern_mismatch": ("pattern", "text that matches {}"),
}


def explain(document: Document, error: ValidationError) -> list[Fault]:
    """One fault for each of pydantic's errors, placed at the line or `--set` that wrote the value."""
    return [_fault(document, details) for details in error.errors(include_url=False) if not _is_echo(details)]


def _is_echo(details: ErrorDetails) -> bool:
    """Whether a list is called too short only because pydantic left out its faulty items."""
    return details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"]


def schema_fields(model: type[BaseModel] = Recipe, key: Key = ()) -> Iterator[tuple[Key, FieldInfo]]:
    """Every key path of the schema with its field, parents first; list items have no part of their own."""
    for name, field in _fields(model).items():
        yield (*key, name), field
        if (inner := _model_of(field.annotation)) is not None:
            yield from schema_fields(inner, (*key, name))


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, alone, in a list or as an option."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_of(part))), None)


def _model_at(key: Key) -> type[BaseModel] | None:
    model: type[BaseModel] | None = Recipe
    for part in key:
        if isinstance(part, str) and model is not None:
            field = _fields(model).get(part)
            model = None if field is None else _model_of(field.annotation)
    return model


def _fault(document: Document, details: ErrorDetails) -> Fault:
    kind, key = details["type"], tuple(details["loc"])
    context: Mapping[str, Any] = details.get("ctx", {})
    if kind == "missing":
        return _missing(document, key)
    if kind == "extra_forbidden":
        return _unknown(document, key)
    value = details["input"]
    found = context.get("found") or _found_text(value)
    hint = context.get("hint")
    if kind == REFUSAL:
        expected = str(context["expected"])
    elif kind == "literal_error":
        expected, hint = _choice(str(context["expected"]).replace("'", ""), value)
    elif kind in _BOUNDS:
        name, phrase = _BOUNDS[kind]
        bound = context[name]
        expected = phrase.format(f"{bound:g}" if isinstance(bound, float) else bound)
    else:
        expected, hint = _type(kind, value, details["msg"])
    return Fault(document.origin(key), key, found, expected, hint)


def _missing(document: Document, key: Key) -> Fault:
    model = _model_at(key[:-1])
    field = None if model is None else _fields(model).get(str(key[-1]))
    expected = "a value" if field is None else field.description or "a value"
    return Fault(
        document.origin(key[:-1]), key, "no such key", expected, f"add it, or --set {key_text(key)}=..."
    )


def _unknown(document: Document, key: Key) -> Fault:
    model = _model_at(key[:-1])
    names = [] if model is None else list(_fields(model))
    unknown = str(key[-1])
    hint = _nearest(unknown, names) or _elsewhere(unknown)
    return Fault(document.origin(key), key, "an unknown key", "one of " + ", ".join(names), hint)


def _nearest(name: str, names: list[str]) -> str | None:
    """The name most like the one that was written, in whatever case."""
    close = difflib.get_close_matches(name.lower(), [each.lower() for each in names], n=1)
    return next((f"did you mean {each}?" for each in names if each.lower() in close), None)


def _elsewhere(name: str) -> str | None:
    """Where the schema has a key of this name, if in one place only."""
    paths = [key for key, _ in schema_fields() if key[-1] == name]
    return f"did you mean {key_text(paths[0])}?" if len(paths) == 1 else None


def _choice(choices: str, value: Any) -> tuple[str, str | None]:
    """What a field of a few values expects, and the nearest of them."""
    names = choices.replace(" or ", ", ").split(", ")
    if not isinstance(value, str):
        return choices, None
    if all(map(_is_number, names)):
        return f"a number, {choices}", _UNQUOTE if value in names else None
    return choices, _nearest(value, names)


def _type(kind: str, value: Any, message: str) -> tuple[str, str | None]:
    """What a field of another type expects, and how to write it."""
    if kind == "int_type" and isinstance(value, float):
        return "a whole number", None
    hint = None
    if kind in _NUMBERS and isinstance(value, str) and _is_number(value):
        hint = _UNQUOTE
    elif kind == "string_type" and isinstance(value, bool | int | float):
        hint = "put it in quotes"
    return _EXPECTED.get(kind, message), hint


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _found_text(value: Any) -> str:
    """A value as a fault report shows it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'text "{value if len(value) <= 60 else value[:57] + "..."}"'
    if isinstance(value, int | float):
        return f"number {value}"
    if isinstance(value, tuple):
        return f"a list of {len(value)}"
    return "keys and values" if isinstance(value, dict) else "nothing"
