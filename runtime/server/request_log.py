"""The outermost middleware: a request's id, its one log line, and its place in the counters."""

from __future__ import annotations

import logging
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gristmill.runtime.server.caller import request_id_of
from gristmill.runtime.server.errors import ERROR_CODE_HEADER, STATUS_CLIENT_LEFT
from gristmill.runtime.server.metrics import Metrics
from gristmill.runtime.server.paths import is_control
from gristmill.runtime.server.records import RequestRecord, current_record

__all__ = ["SEND_BODY", "RequestLog"]

SEND_BODY = "send_body"
"""The server's own `send`, in a request's state: no layer looks at what follows the start of a response."""

_logger = logging.getLogger("gristmill.requests")

_MOST_SHOWN = 200  # characters of what a client calls for: a line of the log stays a line


class RequestLog:
    """Gives every request an id (the client's own, if fit), and says what became of it.

    Plain ASGI: a wrapper that reads whole responses would hold streams back and hide
    that a client has left.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; every response carries X-Request-Id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(Headers(scope=scope).get("x-request-id"))
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state[SEND_BODY] = send
        method, path = scope["method"][:_MOST_SHOWN], scope["path"][:_MOST_SHOWN]
        record = RequestRecord(request_id, method, path, time.monotonic())
        current_record.set(record)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                record.status = message["status"]
                record.error = headers.get(ERROR_CODE_HEADER, "")
            await send(message)

        self._metrics.http_open.inc()
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._metrics.http_open.dec()
            self._end(record, scope)

    def _end(self, record: RequestRecord, scope: Scope) -> None:
        record.tenant = scope["state"].get("tenant", "")
        record.handler = getattr(scope.get("endpoint"), "__name__", "")
        record.status = record.status or STATUS_CLIENT_LEFT  # nothing was sent: nobody is left to read it
        self._metrics.http_ended(record)
        level = logging.DEBUG if is_control(record.path) and record.status < 400 else logging.INFO
        if _logger.isEnabledFor(level):
            _logger.log(level, "request", extra={"fields": record.fields(time.monotonic())})
