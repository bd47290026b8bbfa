"""Who asks: what a handler needs to know of the connection beside the request's body."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Receive

__all__ = ["Caller", "caller_of", "request_id_of"]

_REQUEST_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Caller:
    """One client's request.

    `request_id` is the client's own or a fresh one. `tenant` names the API key
    that was shown, empty where keys are off: it salts the prefix cache, so that tenants
    can't learn of each other's prompts by their timing. `asks_prefix` is set by
    `X-Gristmill-Debug: prefix`: the response then tells what the prefix cache had.
    """

    request_id: str
    tenant: str
    receive: Receive
    asks_prefix: bool = False


def caller_of(request: Request) -> Caller:
    """The caller, as the middleware left it in the request's state."""
    state = request.state
    return Caller(
        request_id=getattr(state, "request_id", "") or request_id_of(request.headers.get("x-request-id")),
        tenant=getattr(state, "tenant", ""),
        receive=request.receive,
        asks_prefix="prefix" in request.headers.get("x-gristmill-debug", "").replace(" ", "").split(","),
    )


def request_id_of(given: str | None) -> str:
    """The client's X-Request-Id if it is fit for a log line, else a fresh id."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return uuid.uuid4().hex
