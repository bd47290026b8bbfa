"""A stream's pieces take the short way, and are what the long way would have sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from starlette.types import Message, Send

from gristmill.runtime.errors import InternalError, RequestError
from gristmill.runtime.server.events import EventStream
from gristmill.runtime.server.request_log import SEND_BODY

PIECES = [b"data: 1\n\n", b"data: 2\n\ndata: 3\n\n"]


async def events(error: Exception | None, pieces: Sequence[bytes] = PIECES) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece
    if error is not None:
        raise error


async def no_headers() -> Mapping[str, str]:
    return {}


async def never_leaves() -> Message:
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


def sent_by(state: dict[str, Any], send: Send, error: Exception | None) -> None:
    """Send a stream that ends with `error`."""
    scope = {"type": "http", "state": state}
    stream = EventStream(events(error), lambda: None, 10.0, no_headers)
    asyncio.run(stream(scope, never_leaves, send))


def recorder(messages: list[Message]) -> Send:
    async def send(message: Message) -> None:
        messages.append(message)

    return send


def test_only_the_start_passes_the_layers_and_all_is_sent_as_without_a_short_way() -> None:
    for error in (None, RequestError("no more", code="shutting_down"), InternalError("it broke")):
        layers: list[Message] = []
        server: list[Message] = []
        plain: list[Message] = []
        sent_by({SEND_BODY: recorder(server)}, recorder(layers), error)
        sent_by({}, recorder(plain), error)
        assert [message["type"] for message in layers] == ["http.response.start"]
        assert layers + server == plain
        assert [message["body"] for message in server[:2]] == PIECES
        assert [message["more_body"] for message in server] == [True, True, False]


def test_an_error_before_the_first_piece_passes_the_layers() -> None:
    error = RequestError("too much", code="queue_full")
    layers: list[Message] = []
    server: list[Message] = []
    stream = EventStream(events(error, ()), lambda: None, 10.0, no_headers)
    scope = {"type": "http", "state": {SEND_BODY: recorder(server)}}
    asyncio.run(stream(scope, never_leaves, recorder(layers)))
    assert layers[0]["status"] == 429
    assert not server
