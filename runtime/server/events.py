"""Answers to a client that may leave at any moment, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gristmill.runtime.errors import GristmillError
from gristmill.runtime.server.errors import error_body, error_response
from gristmill.runtime.server.request_log import SEND_BODY

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
    """Events in pieces of one or more, closed by `data: [DONE]`; a comment whenever none came for a while.

    The status waits for the first event or comment, so that a request that fails
    before it gets an error's own status. A failure after it ends the stream with
    an `error` object. Comments (`: ping`) keep proxies and clients from giving up
    on a request that waits or reads a long prompt. `more_headers` are known with the
    first event; a comment that comes before it leaves them out.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        abort: Callable[[], None],
        ping_seconds: float,
        more_headers: Callable[[], Awaitable[Mapping[str, str]]],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._abort = abort
        self._ping_seconds = ping_seconds
        self._more_headers = more_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. However it ends, also before its first event, `abort` is called."""
        writer = _EventWriter(send, scope["state"].get(SEND_BODY, send), self.raw_headers)
        try:
            error = await unless_client_leaves(self._write_all(writer), receive)
            if error is not None and not writer.started:
                await error_response(error)(scope, receive, send)
            else:
                await writer.end(error)
        except ClientDisconnect:
            _logger.debug("a client left its stream")
        finally:
            self._abort()

    async def _write_all(self, writer: _EventWriter) -> Exception | None:
        """Write all events; returns the error that broke them off."""
        pings = asyncio.ensure_future(writer.ping_when_quiet(self._ping_seconds))
        try:
            async with aclosing(self._events) as events:
                async for piece in events:
                    if not writer.started:
                        self.headers.update(await self._more_headers())
                    await writer.write(piece)
        except GristmillError as error:
            return error
        except Exception as error:
            _logger.exception("an answer broke off")
            return error
        finally:
            pings.cancel()
            await asyncio.wait({pings})
        return None


class _EventWriter:
    """The body of one response, which begins with its first event; each `write` is whole events."""

    def __init__(self, send: Send, send_body: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.started = False
        self._send = send
        self._send_body = send_body
        self._headers = headers
        self._one_start = asyncio.Lock()
        self._last_write = time.monotonic()

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send bytes, after the status if they are the first."""
        if not self.started:
            await self._start()
        await self._send_body({"type": "http.response.body", "body": data, "more_body": more})
        self._last_write = time.monotonic()

    async def ping_when_quiet(self, seconds: float) -> None:
        """Write a comment whenever nothing was written for so long; never ends."""
        while True:
            left = self._last_write + seconds - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)
            else:
                await self.write(b": ping\n\n")

    async def end(self, error: Exception | None) -> None:
        """Close the stream, with the error that ended it early."""
        last = b"" if error is None else b"data: " + to_json(error_body(error)) + b"\n\n"
        await self.write(last + b"data: [DONE]\n\n", more=False)

    async def _start(self) -> None:
        """Send the status, once: the first event and a comment may meet here."""
        async with self._one_start:
            if not self.started:
                head = {"type": "http.response.start", "status": 200, "headers": list(self._headers)}
                await self._send(head)
                self.started = True
