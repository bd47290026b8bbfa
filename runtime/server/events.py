"""Answers to a client that may leave at any moment, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gristmill.runtime.errors import GristmillError
from gristmill.runtime.server.errors import error_body, error_response

__all__ = ["EventStream", "unless_client_leaves"]

T = TypeVar("T")

_logger = logging.getLogger(__name__)


async def unless_client_leaves(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of `work`, cancelled with ClientDisconnect as soon as the client closes the connection."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_client_leaves(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait({working, leaving})


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


class EventStream(Response):
    """JSON chunks as `data:` lines, closed by `data: [DONE]`.

    The status waits for the first chunk, so that a request that fails before
    it gets an error's own status. A failure after it ends the stream with an
    `error` object.
    """

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[dict[str, Any], None], abort: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._abort = abort
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. However it ends, also before its first chunk, `abort` is called."""
        try:
            await unless_client_leaves(self._send_all(scope, receive, send), receive)
        except ClientDisconnect:
            _logger.debug("a client left its stream")
        finally:
            self._abort()

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send_chunks(send)
        except GristmillError as error:
            await self._send_failure(error, scope, receive, send)
        except Exception as error:
            _logger.exception("an answer broke off")
            await self._send_failure(error, scope, receive, send)
        else:
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    async def _send_chunks(self, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                if not self._started:
                    self._started = True
                    start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                    await send(start)
                await _send_event(send, chunk)

    async def _send_failure(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._started:
            await error_response(error)(scope, receive, send)
            return
        await _send_event(send, error_body(error))
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


async def _send_event(send: Send, chunk: dict[str, Any]) -> None:
    data = json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
    await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})
