"""The server's connections: no more than there are file descriptors for, and none held open for nothing."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

import h11
import psutil
import uvicorn
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from gristmill.runtime.errors import RequestError
from gristmill.runtime.server.errors import error_response
from gristmill.runtime.server.framing import StreamingConnection

__all__ = ["accept_connections"]

_SILENT_MILLISECONDS = 60_000  # for a client to take in what was sent to it
_RETRY_SECONDS = 0.2
_SECONDS_BETWEEN_LINES = 60.0
_SPARE_DESCRIPTORS = 32  # for files that are read while the server runs, and for connections about to close
_MOST_CONNECTIONS = 8192

_logger = logging.getLogger(__name__)


async def accept_connections(listener: socket.socket, server: uvicorn.Server, head_seconds: float) -> None:
    """Take what connects to the listening socket, until cancelled.

    The headers of a request have `head_seconds`, from its first byte or the connection's start on.
    When there are as many connections as this process may have, the one that has been
    without a request for longest makes room; where all have one, a new one is answered with 503.
    """
    room = _Room()
    protocol = partial(_Connection, server, room, head_seconds)
    listener.setblocking(False)
    while True:
        await _readable(listener)
        try:
            await _take(listener, room, protocol)
        except BlockingIOError:
            _logger.debug("a client left before it was accepted")
        except OSError as error:  # the client has left, or descriptors have run out in spite of all
            room.tell(f"can't accept a connection: {error.strerror}")
            await asyncio.sleep(_RETRY_SECONDS)


async def _readable(listener: socket.socket) -> None:
    """Wait until someone connects; who waits for the connection itself and is cancelled can lose it."""
    loop, arrival = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listener, arrival.set)
    try:
        await arrival.wait()
    finally:
        loop.remove_reader(listener)


async def _take(listener: socket.socket, room: _Room, protocol: Callable[[], _Connection]) -> None:
    """Serve or refuse one that has connected. Raises OSError."""
    connection, _ = listener.accept()
    try:
        if not room.make():
            _refuse(connection)
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MILLISECONDS)
        await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)
    except OSError:
        connection.close()
        raise


class _Room:
    """How many connections there may be, and which of them wait for a request, the longest first."""

    def __init__(self) -> None:
        self.open: set[_Connection] = set()
        self.idle: dict[_Connection, None] = {}
        self._most = _most_connections()
        self._told = -_SECONDS_BETWEEN_LINES

    def make(self) -> bool:
        """True if there is room for one more, also if it had to be made by closing an idle one."""
        if len(self.open) < self._most:
            return True
        self.tell(
            f"{self._most} connections are open, as many as there may be (see ulimit -n): "
            "idle ones are closed, or new ones refused"
        )
        for connection in self.idle:
            connection.hang_up()
            return True
        return False

    def tell(self, what: str) -> None:
        """Warn, but not more often than anyone could read."""
        now = time.monotonic()
        if now - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = now
            _logger.warning(what)


class _Connection(H11Protocol):
    """uvicorn's, with a time limit for a request's headers and with errors in OpenAI's form."""

    def __init__(self, server: uvicorn.Server, room: _Room, head_seconds: float) -> None:
        super().__init__(server.config, server.server_state, app_state={})
        self.conn = StreamingConnection(h11.SERVER)
        self._room = room
        self._head_seconds = head_seconds
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The event loop's call: it has begun, and a request ought to follow."""
        super().connection_made(transport)
        self._room.open.add(self)
        self._settle(head_begins=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The event loop's call: it is over."""
        super().connection_lost(exc)
        self._room.open.discard(self)
        self._room.idle.pop(self, None)
        self._stop_timer()

    def data_received(self, data: bytes) -> None:
        """The event loop's call: bytes have come."""
        super().data_received(data)
        self._settle(head_begins=True)

    def on_response_complete(self) -> None:
        """uvicorn's call: an answer is written; the next request may be here already."""
        super().on_response_complete()
        self._settle(head_begins=False)

    def send_400_response(self, msg: str) -> None:
        """uvicorn's call: what the client sent is no HTTP."""
        self._refuse(RequestError("the request is not valid HTTP/1.1", code="invalid_http"))

    def hang_up(self) -> None:
        """Close at once, even if the client does not read what was written to it."""
        self._room.open.discard(self)
        self._room.idle.pop(self, None)
        self.transport.abort()

    def _settle(self, *, head_begins: bool) -> None:
        """Note whether a request is open; if not, the next one's headers must be here in time."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._room.idle.pop(self, None)
            self._stop_timer()
            return
        self._room.idle.setdefault(self)
        if head_begins and self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_seconds, self._on_late_head)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_late_head(self) -> None:
        self._head_timer = None
        if not self.conn.trailing_data[0]:
            self.transport.close()  # nothing was asked that could be answered
            return
        self._refuse(
            RequestError(
                "the request's headers do not arrive",
                code="request_timeout",
                found=f"less than all of them after {self._head_seconds:g} s",
            )
        )

    def _refuse(self, error: RequestError) -> None:
        """Answer, unless that was done or begun, and close."""
        cycle = self.cycle
        if cycle is None or not cycle.response_started or (cycle.response_complete and not cycle.more_body):
            self.transport.write(_bytes_of(error_response(error)))
        self.transport.close()


def _refuse(connection: socket.socket) -> None:
    """Tell a client that there is no room for it, as far as that is possible without waiting."""
    error = RequestError("the server has too many connections", code="overloaded", retry_after=1.0)
    with connection:
        try:
            connection.setblocking(False)
            connection.send(_bytes_of(error_response(error)))
        except OSError:
            _logger.debug("a client left before it was refused")


def _bytes_of(response: Response) -> bytes:
    """A whole HTTP/1.1 response after which the connection closes."""
    status = f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()
    lines = [status, *(name + b": " + value for name, value in response.raw_headers), b"connection: close"]
    return b"\r\n".join(lines) + b"\r\n\r\n" + bytes(response.body)


def _most_connections() -> int:
    """As many as there are free file descriptors; the limit is raised as far as this process may raise it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_CONNECTIONS + 2 * _SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    free = soft - psutil.Process().num_fds() - _SPARE_DESCRIPTORS
    return max(1, min(_MOST_CONNECTIONS, free))
