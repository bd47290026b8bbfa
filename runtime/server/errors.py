"""Errors in the form that OpenAI clients read: status, type, field and code."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gristmill.runtime.errors import GristmillError, InputError, RequestError

__all__ = ["error_body", "error_response", "on_client_left", "on_error", "on_http_error", "status_of"]

_STATUS_BY_CODE = {"model_not_found": 404, "queue_full": 429, "request_too_large": 413, "shutting_down": 503}
_TYPE_BY_STATUS = {429: "rate_limit_error", 500: "server_error", 503: "service_unavailable"}
_RETRY_AFTER_SECONDS = "1"
_CLIENT_CLOSED_REQUEST = 499  # nginx's number; nobody is left to read it


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
    headers = {"Retry-After": _RETRY_AFTER_SECONDS} if status in (429, 503) else None
    return JSONResponse(error_body(error), status, headers)


async def on_error(request: Request, error: Exception) -> Response:
    """Handler for every exception that an endpoint raises."""
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Handler for an unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = _body(message, error.status_code, param=None, code=None)
    return JSONResponse(body, error.status_code, error.headers)


async def on_client_left(request: Request, error: Exception) -> Response:
    """Handler for a client that closed the connection before its answer was complete."""
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


def _body(message: str, status: int, *, param: str | None, code: str | None) -> dict[str, Any]:
    kind = _TYPE_BY_STATUS.get(status, "invalid_request_error")
    return {"error": {"message": _clean(message), "type": kind, "param": _clean(param), "code": code}}


def _clean(text: str | None) -> str | None:
    """Text that can be encoded: what a client sent may hold half a surrogate pair."""
    return None if text is None else text.encode(errors="replace").decode()
