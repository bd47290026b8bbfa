"""Connections that ask for nothing, never finish asking, or are too many: the server keeps answering."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.server import connections
from gristmill.runtime.server.settings import ServerSettings

MakeEngine = Callable[..., LLMEngine]
Serve = Callable[..., Any]

HURRIED = ServerSettings(head_seconds=0.2)
COMPLETION = {"model": "m", "prompt": "hello\n", "max_tokens": 60, "temperature": 0}
GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def connect(url: str, data: bytes = b"") -> socket.socket:
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port or 0), timeout=10)
    connection.sendall(data)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def read_answer(connection: socket.socket) -> bytes:
    """One answer on a connection that stays open."""
    answer = b""
    while True:
        answer += connection.recv(65536)
        head, _, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if length and len(body) >= int(length[1]):
            return answer


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def test_headers_that_do_not_end_are_answered_in_time(make_engine: MakeEngine, serve: Serve) -> None:
    server = serve(settings=HURRIED, m=make_engine("parrot"))
    answer = read_all(connect(server.url, b"GET /health HTTP/1.1\r\nHost: x\r\n"))
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b'"code":"request_timeout"' in answer


def test_a_trickle_of_headers_does_not_extend_the_time(make_engine: MakeEngine, serve: Serve) -> None:
    server = serve(settings=HURRIED, m=make_engine("parrot"))
    started = time.monotonic()
    answer = None
    with connect(server.url, b"GET /health HTTP/1.1\r\n") as connection:
        connection.settimeout(0.02)
        while answer is None:
            assert time.monotonic() - started < 10
            connection.send(b"X-Slow: 1\r\n")
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                continue
    assert answer.startswith(b"HTTP/1.1 408")


def test_a_second_request_has_the_same_time(make_engine: MakeEngine, serve: Serve) -> None:
    connection = connect(serve(settings=HURRIED, m=make_engine("parrot")).url, GET_HEALTH)
    assert b"200 OK" in read_answer(connection)
    connection.sendall(b"GET /he")
    assert read_all(connection).startswith(b"HTTP/1.1 408")


def test_a_connection_that_says_nothing_is_closed_without_a_word(
    make_engine: MakeEngine, serve: Serve
) -> None:
    assert read_all(connect(serve(settings=HURRIED, m=make_engine("parrot")).url)) == b""


def test_a_kept_connection_and_a_slow_answer_are_left_alone(make_engine: MakeEngine, serve: Serve) -> None:
    gate = threading.Event()
    server = serve(settings=HURRIED, m=make_engine("parrot", gate=gate))
    threading.Timer(0.6, gate.set).start()
    with httpx.Client() as client:
        assert client.post(f"{server.url}/v1/completions", json=COMPLETION).json()["choices"]
        kept = connect(server.url, GET_HEALTH)
        assert b"200 OK" in read_answer(kept)
        time.sleep(0.4)
        kept.sendall(GET_HEALTH)
        assert b"200 OK" in read_answer(kept)
        kept.close()


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a" * 99_999]
)
def test_what_is_no_http_is_answered_in_the_form_of_all_errors(
    make_engine: MakeEngine, serve: Serve, data: bytes
) -> None:
    connection = connect(serve(m=make_engine("parrot")).url, data)
    answer = read_answer(connection)
    connection.close()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b'"code":"invalid_http"' in answer


def test_what_follows_an_answer_and_is_no_http_ends_the_connection_alone(
    make_engine: MakeEngine, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection = connect(serve(m=make_engine("parrot")).url, head)
    assert b" 404 " in read_answer(connection)
    connection.sendall(b"no size\r\n")
    assert read_all(connection) == b""
    assert not [record for record in caplog.records if record.exc_info]


def test_idle_connections_make_room_for_new_ones(
    make_engine: MakeEngine, serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "_MOST_CONNECTIONS", 4)
    server = serve(m=make_engine("parrot"))
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(connect(server.url, b"GET /he"))
        assert httpx.post(f"{server.url}/v1/completions", json=COMPLETION).status_code == 200
    assert [record.getMessage() for record in caplog.records if "connections are open" in record.getMessage()]
    assert len(caplog.records) == 1


def test_a_connection_beyond_those_that_work_is_told_so(
    make_engine: MakeEngine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_MOST_CONNECTIONS", 1)
    gate = threading.Event()
    engine = make_engine("parrot", gate=gate)
    server = serve(m=engine)
    body = json.dumps(COMPLETION).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    busy = connect(server.url, head.encode() + body)
    try:
        wait_until(lambda: engine.stats().num_running == 1)
        refused = read_all(connect(server.url))
    finally:
        gate.set()
    assert refused.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"retry-after: 1\r\n" in refused.lower()
    assert b"hello" in read_answer(busy)
    busy.close()
    assert httpx.get(f"{server.url}/health").status_code == 200
