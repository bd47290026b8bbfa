"""From the bytes of a request to its typed form; whatever is wrong with them is a RequestError."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from gristmill.runtime.errors import RequestError
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
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            "the request body is not valid JSON",
            code="invalid_json",
            found=str(error) or type(error).__name__,
        ) from error
    if not isinstance(value, dict):
        raise RequestError(
            "the request body is not a JSON object", code="invalid_json", found=type(value).__name__
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
        raise _first_fault(error) from error


async def _read_body(request: Request) -> bytes:
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


def _first_fault(error: ValidationError) -> RequestError:
    fault = error.errors(include_url=False, include_context=False)[0]
    path = [str(part) for part in fault["loc"]]
    field = path[0] if path else None
    if fault["type"] == "missing":
        return RequestError(f"{field} is missing", field=field, code="missing_parameter")
    return RequestError(
        f"{'.'.join(path)} is invalid", field=field, found=f"{fault['input']!r:.80}", expected=fault["msg"]
    )
