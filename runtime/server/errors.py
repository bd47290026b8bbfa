"""Errors in the form that OpenAI clients read: status, type, field and code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gristmill.runtime.errors import GristmillError, InputError, RequestError

__all__ = [
    "ERROR_CODE_HEADER",
    "STATUS_CLIENT_LEFT",
    "error_body",
    "error_response",
    "on_client_left",
    "on_error",
    "on_http_error",
    "status_of",
]

ERROR_CODE_HEADER = "X-Error-Code"
STATUS_CLIENT_LEFT = 499  # nginx's number; nobody is left to read it

_STATUS_BY_CODE: Mapping[str, int] = MappingProxyType(
    {
        "invalid_api_key": 401,
        "forbidden": 403,
        "model_not_found": 404,
        "request_timeout": 408,
        "busy": 409,
        "request_too_large": 413,
        "unsupported_encoding": 415,
        "queue_full": 429,
        "tenant_limit": 429,
        "loading": 503,
        "overloaded": 503,
        "shutting_down": 503,
    }
)
_TYPE_BY_STATUS: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        429: "rate_limit_error",
        500: "server_error",
        503: "service_unavailable",
    }
)


def status_of(error: Exception) -> int:
    """The HTTP status of an error: the user's faults are 4xx, the rest 500."""
    if isinstance(error, RequestError):
        return _STATUS_BY_CODE.get(error.code, 400)
    return 400 if isinstance(error, InputError) else 500


def error_body(error: Exception) -> dict[str, Any]:
    """The `error` object of a response or of a stream that breaks off."""
    status = status_of(error)
    known = isinstance(error, GristmillError)
    message = str(error) if known else "the request failed inside the server; its log has the reason"
    return _body(
        message,
        status,
        param=error.field if isinstance(error, RequestError) else None,
        code=error.code if isinstance(error, RequestError) else None,
    )


def error_response(error: Exception) -> JSONResponse:
    """The whole response for an error that comes before any of the answer."""
    status = status_of(error)
    headers = {}
    if isinstance(error, RequestError):
        headers[ERROR_CODE_HEADER] = error.code
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        seconds = error.retry_after if isinstance(error, RequestError) else None
        headers["Retry-After"] = str(max(1, math.ceil(seconds or 0.0)))
    return JSONResponse(error_body(error), status, headers)


async def on_error(request: Request, error: Exception) -> Response:
    """Handler for every exception that an endpoint raises."""
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Handler for an unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path:.200}: {error.detail}"
    body = _body(message, error.status_code, param=None, code=None)
    return JSONResponse(body, error.status_code, error.headers)


async def on_client_left(request: Request, error: Exception) -> Response:
    """Handler for a client that closed the connection before its answer was complete."""
    return Response(status_code=STATUS_CLIENT_LEFT)


def _body(message: str, status: int, *, param: str | None, code: str | None) -> dict[str, Any]:
    kind = _TYPE_BY_STATUS.get(status, "invalid_request_error")
    return {"error": {"message": _clean(message), "type": kind, "param": _clean(param), "code": code}}


def _clean(text: str | None) -> str | None:
    """Text that can be encoded: what a client sent may hold half a surrogate pair."""
    return None if text is None else text.encode(errors="replace").decode()
