"""A client that leaves frees its sequence, wherever its request stands."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gristmill.runtime.engine import LLMEngine

MakeEngine = Callable[..., LLMEngine]
ENDLESS = {"model": "m", "prompt": "hello", "max_tokens": 200, "ignore_eos": True}
CHAT = {key: value for key, value in ENDLESS.items() if key != "prompt"} | {
    "messages": [{"role": "user", "content": "hello"}]
}


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> float:
    """Seconds until the condition held; fails after `seconds`."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it never happened"
        time.sleep(0.005)
    return time.monotonic() - start


def is_idle(engine: LLMEngine) -> bool:
    stats = engine.stats()
    return stats.num_free_blocks == stats.num_blocks and stats.num_running == stats.num_waiting == 0


def send(url: str, path: str, body: dict[str, Any]) -> socket.socket:
    """A request on a raw connection, for the test to cut."""
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port or 0))
    data = json.dumps(body).encode()
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize(("path", "body"), [("completions", ENDLESS), ("chat/completions", CHAT)])
@pytest.mark.parametrize("stream", [True, False])
def test_a_running_request_is_freed(
    make_engine: MakeEngine, serve: Callable[..., Any], path: str, body: dict[str, Any], stream: bool
) -> None:
    engine = make_engine(delay=0.02)
    connection = send(serve(m=engine).url, path, body | {"stream": stream})
    wait_until(lambda: engine.stats().num_running == 1)
    if stream:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    connection.close()
    assert wait_until(lambda: is_idle(engine)) < 1.0


def test_a_client_that_closes_its_sending_side_counts_as_gone(
    make_engine: MakeEngine, serve: Callable[..., Any]
) -> None:
    engine = make_engine(delay=0.02)
    with send(serve(m=engine).url, "completions", ENDLESS) as connection:
        wait_until(lambda: engine.stats().num_running == 1)
        connection.shutdown(socket.SHUT_WR)
        wait_until(lambda: is_idle(engine))
        assert connection.recv(100) == b""


def test_a_waiting_request_is_freed(make_engine: MakeEngine, serve: Callable[..., Any]) -> None:
    engine = make_engine(delay=0.02, max_num_seqs=1)
    server = serve(m=engine)
    first = send(server.url, "completions", ENDLESS)
    wait_until(lambda: engine.stats().num_running == 1)
    second = send(server.url, "completions", ENDLESS)
    wait_until(lambda: engine.stats().num_waiting == 1)
    second.close()
    wait_until(lambda: engine.stats().num_waiting == 0)
    assert engine.stats().num_running == 1
    first.close()
    wait_until(lambda: is_idle(engine))


def test_a_client_that_leaves_before_the_first_token_is_noticed(
    make_engine: MakeEngine, serve: Callable[..., Any]
) -> None:
    gate = threading.Event()
    engine = make_engine(gate=gate)
    connection = send(serve(m=engine).url, "completions", ENDLESS | {"stream": True})
    wait_until(lambda: engine.stats().num_running == 1)
    connection.close()
    time.sleep(0.05)
    gate.set()
    wait_until(lambda: is_idle(engine))


def test_a_client_that_leaves_inside_its_body_does_no_harm(
    make_engine: MakeEngine, serve: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(m=make_engine("parrot"))
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port or 0)) as connection:
        connection.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"mod')
    time.sleep(0.1)
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert not caplog.records


def test_the_others_of_a_batch_go_on(make_engine: MakeEngine, serve: Callable[..., Any]) -> None:
    engine = make_engine("parrot", delay=0.01)
    server = serve(m=engine)
    leaving = send(server.url, "completions", ENDLESS | {"stream": True})
    wait_until(lambda: engine.stats().num_running == 1)
    threading.Timer(0.05, leaving.close).start()
    staying = {"model": "m", "prompt": "I stay to the end\n", "max_tokens": 40, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=staying).json()
    assert answer["choices"][0]["text"] == "I stay to the end"
    wait_until(lambda: is_idle(engine))
