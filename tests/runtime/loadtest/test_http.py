"""The little HTTP that a load generator needs, on bytes that arrive in any pieces."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.runtime.errors import InputError
from gristmill.runtime.loadtest.http import ChunkedDecoder, Connection, Endpoint, HttpError, parse_endpoint


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.lists(st.integers(1, 60), max_size=20))
def test_chunks_are_decoded_however_they_arrive(chunks: list[bytes], cuts: list[int]) -> None:
    body = b"".join(b"%x;name=value\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    decoder, decoded, start = ChunkedDecoder(), b"", 0
    for size in (*cuts, len(body)):
        decoded += decoder.feed(body[start : start + size])
        start += size
    assert decoded == b"".join(chunks)
    assert decoder.done


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(HttpError, match="instead of a chunk's size"):
        ChunkedDecoder().feed(b"word\r\n")


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://localhost:8000", Endpoint("localhost", 8000)),
        ("http://localhost:8000/v1/", Endpoint("localhost", 8000)),
        ("https://host/proxy/v1", Endpoint("host", 443, "/proxy", tls=True)),
        ("http://[::1]:80", Endpoint("::1", 80)),
    ],
)
def test_the_base_url_may_have_a_path(url: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(url) == endpoint


@pytest.mark.parametrize("url", ["http://", "ftp://host", "http://host:port", "http://host:99999"])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="URL is invalid"):
        parse_endpoint(url)


def exchange(answer: bytes) -> tuple[int, bytes, bool]:
    """Status, body and whether the connection may be kept, of a server that sends this and hangs up."""
    hung_up = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await asyncio.sleep(0.05)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        hung_up.set()

    async def ask() -> tuple[int, bytes, bool]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            connection, pieces = await Connection.open(Endpoint("127.0.0.1", port)), []
            try:
                status = await connection.exchange("GET", "/", b"", {}, lambda _, piece: pieces.append(piece))
                return status, b"".join(pieces), connection.alive
            finally:
                connection.close()
                await hung_up.wait()

    return asyncio.run(ask())


def test_a_body_with_a_length_leaves_the_connection_open() -> None:
    assert exchange(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") == (200, b"ok", True)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    assert exchange(b"HTTP/1.0 404 Not Found\r\n\r\nno") == (404, b"no", False)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0 hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
    ],
)
def test_what_is_no_answer_is_an_error(answer: bytes) -> None:
    with pytest.raises(HttpError):
        exchange(answer)
