"""From the bytes of a request to its typed form; whatever is wrong with them is a RequestError."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from gristmill.runtime.errors import RequestError
from gristmill.runtime.server.field_faults import field_fault, json_text
from gristmill.runtime.server.fields import supported_fields

__all__ = ["MAX_BODY_BYTES", "parse_request", "read_object"]

MAX_BODY_BYTES = 4 << 20
_BODY_SECONDS = 60.0

Parsed = TypeVar("Parsed", bound=BaseModel)


async def read_object(
    request: Request, *, seconds: float = _BODY_SECONDS, optional: bool = False
) -> dict[str, Any]:
    """The JSON object in a request's body; where it is `optional`, an empty one for no body.

    Raises RequestError, also for a body that takes longer than `seconds`, and ClientDisconnect
    if the client has left.
    """
    try:
        async with asyncio.timeout(seconds):
            body = await _read_body(request)
    except TimeoutError as error:
        raise RequestError(
            "the request body does not arrive",
            code="request_timeout",
            found=f"less than all of it after {seconds:g} s",
        ) from error
    except asyncio.CancelledError as error:  # by the server's end alone, which the client is told
        raise RequestError(
            "the server is shutting down and the request body has not arrived", code="shutting_down"
        ) from error
    if optional and not body:
        return {}
    try:
        value = json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            "the request body is not valid JSON",
            code="invalid_json",
            found=_json_fault(body, error),
            expected="a JSON object",
        ) from error
    if not isinstance(value, dict):
        raise RequestError(
            "the request body is not a JSON object", code="invalid_json", found=json_text(value)
        )
    return value


def parse_request(
    kind: type[Parsed], body: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]]
) -> Parsed:
    """Check a body's fields against the table and its values against `kind`. Raises RequestError."""
    fields = supported_fields(body, kind.model_fields, unsupported)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise field_fault(kind, fields, error) from error


async def _read_body(request: Request) -> bytes:
    _check_encoding(request.headers.get("content-encoding", ""))
    _check_size(int(request.headers.get("content-length", 0)))
    body = bytearray()
    async for piece in request.stream():
        body += piece
        _check_size(len(body))
    return bytes(body)


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_BODY_BYTES:
        raise RequestError(
            "the request body is too large",
            code="request_too_large",
            expected=f"at most {MAX_BODY_BYTES} bytes",
        )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_encoding(encoding: str) -> None:
    if encoding.strip().lower() not in ("", "identity"):
        raise RequestError(
            "the request body is compressed",
            code="unsupported_encoding",
            found=f"Content-Encoding: {encoding:.40}",
            expected="JSON as it is",
        )


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object, whose names must differ: else nobody knows which value was meant."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice!r:.80} stands there twice")
    return value


def _json_fault(body: bytes, error: ValueError | RecursionError) -> str:
    """What keeps a body from being JSON, without the words of the library that found it."""
    if not body.strip():
        return "nothing"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start}, which is not {error.encoding.upper()}"
    if isinstance(error, RecursionError):
        return "too many lists or objects within each other"
    if "int_max_str_digits" in str(error):
        return "a number of thousands of digits"
    return str(error)
