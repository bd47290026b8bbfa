"""Bytes on the wire are h11's own, whatever is sent and whenever."""

from __future__ import annotations

from collections.abc import Sequence

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.runtime.server.framing import StreamingConnection

REQUESTS = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.0\r\nHost: x\r\n\r\n",
]
HEADERS: list[list[tuple[str, str]]] = [[], [("Content-Length", "3")], [("Transfer-Encoding", "chunked")]]
EVENTS = st.one_of(
    st.binary(max_size=20).map(h11.Data),
    st.sampled_from(HEADERS).map(lambda headers: h11.Response(status_code=200, headers=headers)),
    st.just(h11.EndOfMessage()),
    st.just(h11.ConnectionClosed()),
)


def play(connection: h11.Connection, request: bytes, events: Sequence[h11.Event]) -> list[object]:
    """What it makes of a request and of what is sent, with its state after each."""
    connection.receive_data(request)
    connection.next_event()
    told: list[object] = []
    for event in events:
        try:
            sent = connection.send(event)
        except h11.LocalProtocolError as error:
            told.append(str(error))
        else:
            told.append(sent)
        told.append((connection.our_state, connection.their_state))
    return told


@pytest.mark.parametrize("request_bytes", REQUESTS)
@given(st.lists(EVENTS, max_size=8), st.booleans())
def test_it_sends_what_h11_sends(request_bytes: bytes, events: list[h11.Event], begins: bool) -> None:
    if begins:
        events = [h11.Response(status_code=200, headers=[]), *events]
    mine = play(StreamingConnection(h11.SERVER), request_bytes, events)
    assert mine == play(h11.Connection(h11.SERVER), request_bytes, events)
