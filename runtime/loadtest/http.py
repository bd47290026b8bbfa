"""HTTP/1.1 over asyncio streams, as little of it as a load generator needs.

The client shares its processors with the server that it measures, so that every
microsecond a token counts: general HTTP libraries cost several times as much
as this per piece of a stream.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gristmill.runtime.errors import InputError

__all__ = ["ChunkedDecoder", "Connection", "Endpoint", "HttpError", "parse_endpoint"]

_READ_SIZE = 1 << 16


class HttpError(Exception):
    """The peer broke off, or what it sent is no HTTP."""


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


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError as error:
        raise HttpError(f"{line[:40]!r} instead of a chunk's size") from error


def _content_length(text: bytes) -> int:
    if not text.isdigit():
        raise HttpError(f"{text[:40]!r} instead of a body's length")
    return int(text)


@dataclass(slots=True)
class Connection:
    """One connection, one request at a time; reusable while `alive`."""

    endpoint: Endpoint
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    alive: bool = True
    used: bool = False
    _headers: dict[bytes, bytes] = field(default_factory=dict)

    @classmethod
    async def open(cls, endpoint: Endpoint) -> Connection:
        """Connect. Raises OSError."""
        context = ssl.create_default_context() if endpoint.tls else None
        reader, writer = await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=context, limit=_READ_SIZE
        )
        return cls(endpoint, reader, writer)

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send one request."""
        lines = [
            f"{method} {self.endpoint.root}{path} HTTP/1.1",
            f"Host: {self.endpoint.host}:{self.endpoint.port}",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def status(self) -> int:
        """The status of the answer; its body is still to be read. Raises HttpError, OSError."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            self.alive = False
            raise HttpError("the connection was closed before an answer") from error
        first, *lines = head.split(b"\r\n")
        self._headers = {
            name.strip().lower(): value.strip()
            for name, found, value in (line.partition(b":") for line in lines)
            if found
        }
        words = first.split(maxsplit=2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            self.alive = False
            raise HttpError(f"{first[:40]!r} instead of an answer")
        self.alive = self._headers.get(b"connection", b"").lower() != b"close" and words[0] != b"HTTP/1.0"
        return int(words[1])

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises HttpError if it breaks off, OSError."""
        if self._headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            decoder = ChunkedDecoder()
            while not decoder.done:
                if piece := decoder.feed(await self._read()):
                    yield piece
        elif (length := self._headers.get(b"content-length")) is not None:
            left = _content_length(length)
            while left > 0:
                piece = await self._read()
                left -= len(piece)
                yield piece
        else:
            self.alive = False
            while piece := await self.reader.read(_READ_SIZE):
                yield piece

    async def body(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])

    def close(self) -> None:
        """Hang up, also in the middle of an answer."""
        self.alive = False
        self.writer.close()

    async def _read(self) -> bytes:
        piece = await self.reader.read(_READ_SIZE)
        if not piece:
            self.alive = False
            raise HttpError("the answer broke off")
        return piece
