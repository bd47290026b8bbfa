"""HTTP/1.1 as little as a load generator needs.

The client shares its processors with the server that it measures, so that every
microsecond a token counts. Bytes go from the event loop straight to who reads
the answer, without a task switch a piece, as streams and HTTP libraries need.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

from gristmill.runtime.errors import InputError

__all__ = [
    "ChunkedDecoder",
    "Connection",
    "Endpoint",
    "HttpError",
    "NoAnswerError",
    "Receive",
    "parse_endpoint",
]

Receive = Callable[[int, bytes], None]
"""Takes the status and a piece of the body."""

_MAX_HEAD = 1 << 16


class HttpError(Exception):
    """The peer broke off, or what it sent is no HTTP."""


class NoAnswerError(HttpError):
    """The peer hung up without a word."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens; `root` stands before every path."""

    host: str
    port: int
    root: str = ""
    tls: bool = False

    @property
    def url(self) -> str:
        """The base address, without /v1."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.root}"


def parse_endpoint(url: str) -> Endpoint:
    """The server of a base URL, with or without its /v1. Raises InputError."""
    expected = "http://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError("the server's URL is invalid", found=url, expected=expected) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError("the server's URL is invalid", found=url, expected=expected)
    tls = parts.scheme == "https"
    root = parts.path.rstrip("/").removesuffix("/v1")
    return Endpoint(parts.hostname, port or (443 if tls else 80), root, tls)


class ChunkedDecoder:
    """Takes the chunk sizes out of a body."""

    def __init__(self) -> None:
        self._buffer = b""
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """What complete chunks hold so far. Raises HttpError for a size that is none."""
        buffer, start, whole = self._buffer + data, 0, []
        while not self.done and (end := buffer.find(b"\r\n", start)) >= 0:
            size = _chunk_size(buffer[start:end])
            if len(buffer) < end + size + 4:
                break
            whole.append(buffer[end + 2 : end + 2 + size])
            start = end + size + 4
            self.done = size == 0
        self._buffer = buffer[start:]
        return b"".join(whole)


class _Body(Protocol):
    done: bool

    def feed(self, data: bytes) -> bytes: ...


class _LengthBody:
    """A body of so many bytes."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0

    def feed(self, data: bytes) -> bytes:
        self._left -= len(data)
        self.done = self._left <= 0
        return data


class _OpenBody:
    """A body that ends with its connection."""

    done = False

    def feed(self, data: bytes) -> bytes:
        return data


class _Answer:
    """One answer while it arrives; `ended` has its status when it is whole."""

    def __init__(self, receive: Receive, ended: asyncio.Future[int]) -> None:
        self.ended = ended
        self.keeps_alive = False
        self._receive = receive
        self._head = b""
        self._status = 0
        self._body: _Body | None = None

    def feed(self, data: bytes) -> None:
        """Read on. Raises HttpError, and what `receive` raises."""
        if self._body is None:
            self._head, found, data = (self._head + data).partition(b"\r\n\r\n")
            if len(self._head) > _MAX_HEAD:
                raise HttpError("the answer's head has no end")
            if not found:
                return
            self._body = self._read_head()
        if data and (piece := self._body.feed(data)):
            self._receive(self._status, piece)
        if self._body.done and not self.ended.done():
            self.ended.set_result(self._status)

    def close(self) -> None:
        """The connection has ended, and with it the answer if it is whole."""
        if self.ended.done():
            return
        if isinstance(self._body, _OpenBody):
            self.ended.set_result(self._status)
        elif self._status:
            self.ended.set_exception(HttpError("the answer broke off"))
        else:
            self.ended.set_exception(NoAnswerError("no answer came"))

    def _read_head(self) -> _Body:
        first, *lines = self._head.split(b"\r\n")
        words = first.split(maxsplit=2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise HttpError(f"{first[:40]!r} instead of an answer")
        self._status = int(words[1])
        fields = (line.partition(b":") for line in lines)
        headers = {name.strip().lower(): value.strip().lower() for name, _, value in fields}
        self.keeps_alive = words[0] != b"HTTP/1.0" and headers.get(b"connection") != b"close"
        if headers.get(b"transfer-encoding") == b"chunked":
            return ChunkedDecoder()
        if (length := headers.get(b"content-length")) is None:
            return _OpenBody()
        if not length.isdigit():
            raise HttpError(f"{length[:40]!r} instead of a body's length")
        return _LengthBody(int(length))


class Connection(asyncio.Protocol):
    """One connection, one request at a time; it can be used again while `alive`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.alive = False
        self.used = False
        self._endpoint = endpoint
        self._answer: _Answer | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, endpoint: Endpoint) -> Connection:
        """Connect. Raises OSError."""
        context = ssl.create_default_context() if endpoint.tls else None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: cls(endpoint), endpoint.host, endpoint.port, ssl=context
        )
        return connection

    async def exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], receive: Receive
    ) -> int:
        """Send a request and hand its answer to `receive` as it arrives; the status, when it is whole.

        Whatever ends this early closes the connection. Raises HttpError, OSError and what `receive` raises.
        """
        if self._transport is None or not self.alive:
            raise HttpError("the connection is closed")
        lines = [
            f"{method} {self._endpoint.root}{path} HTTP/1.1",
            f"Host: {self._endpoint.host}:{self._endpoint.port}",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self._answer = _Answer(receive, asyncio.get_running_loop().create_future())
        self._transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        try:
            status = await self._answer.ended
        except BaseException:
            self.close()
            raise
        self.alive = self.alive and self._answer.keeps_alive
        self._answer = None
        self.used = True
        return status

    def close(self) -> None:
        """Hang up, also in the middle of an answer."""
        self.alive = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The event loop's call: requests may be sent."""
        self._transport = cast(asyncio.Transport, transport)
        self.alive = True

    def data_received(self, data: bytes) -> None:
        """The event loop's call: bytes have come."""
        answer = self._answer
        if answer is None or answer.ended.done():
            self.close()  # what nobody asked for
            return
        try:
            answer.feed(data)
        except (HttpError, ValueError) as error:
            answer.ended.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        """The event loop's call: the peer or we have hung up."""
        self.alive = False
        if self._answer is not None:
            self._answer.close()


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError as error:
        raise HttpError(f"{line[:40]!r} instead of a chunk's size") from error
