"""What is wrong with a field's value, in our words instead of the validator's: found, expected."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from gristmill.runtime.errors import RequestError

__all__ = ["field_fault", "json_text"]

_MOST_SHOWN = 80

# A kind of value, and several of them.
_NAMES: Mapping[Any, tuple[str, str]] = MappingProxyType(
    {
        str: ("text", "texts"),
        int: ("a whole number", "whole numbers"),
        float: ("a number", "numbers"),
        bool: ("true or false", "true or false"),
    }
)
# The validator's name of a broken bound, and what it asks for.
_BOUNDS: Mapping[str, str] = MappingProxyType(
    {
        "greater_than_equal": "at least {ge}",
        "less_than": "less than {lt}",
        "string_too_long": "at most {max_length} characters",
        "too_short": "at least {min_length} of them",
        "finite_number": "a finite number",
    }
)


def field_fault(form: type[BaseModel], body: Mapping[str, Any], error: ValidationError) -> RequestError:
    """The first fault that the validator found in a body of this form."""
    fault = error.errors(include_url=False)[0]
    path = [str(part) for part in fault["loc"]]
    field, kind = path[0] if path else None, fault["type"]
    if kind == "missing":
        return RequestError(f"{'.'.join(path)} is missing", field=field, code="missing_parameter")
    if kind == "extra_forbidden":
        name = ".".join(path)
        return RequestError(
            f"unknown field {name!r:.80}",
            field=field,
            code="unknown_parameter",
            hint=f"remove it from {field}",
        )
    if kind in _BOUNDS:
        expected, found = _BOUNDS[kind].format(**fault.get("ctx", {})), fault["input"]
    else:
        path, kinds = _declared(form, path)
        expected, found = _kinds_text(kinds), _value_at(body, path)
    return RequestError(
        f"{'.'.join(path)} is invalid", field=field, found=json_text(found), expected=expected
    )


def json_text(value: Any) -> str:
    """A value as the client wrote it, cut if it is long."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _declared(form: type[BaseModel], path: Sequence[str]) -> tuple[list[str], Any]:
    """The part of the path that names fields, through forms within forms, and what the last may hold."""
    hint = form.model_fields[path[0]].annotation
    inner = [kind for kind in get_args(hint) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    if inner and len(path) > 1:
        names, hint = _declared(inner[0], path[1:])
        return [path[0], *names], hint
    return [path[0]], hint


def _kinds_text(hint: Any) -> str:
    """`text or a list of texts`, for what a field may hold; that it may be left out is not said."""
    kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return " or ".join(_kind_text(kind)[0] for kind in kinds if kind is not type(None))


def _kind_text(kind: Any) -> tuple[str, str]:
    """The name of a kind of value, and of several of them."""
    if get_origin(kind) is list:
        content = _kind_text(get_args(kind)[0])[1]
        return f"a list of {content}", f"lists of {content}"
    if get_origin(kind) is dict and get_args(kind)[1] is not Any:
        content = _kind_text(get_args(kind)[1])[1]
        return f"an object of {content}", f"objects of {content}"
    return _NAMES.get(get_origin(kind) or kind, ("an object", "objects"))


def _value_at(body: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = body
    for name in path:
        value = value[name]
    return value
