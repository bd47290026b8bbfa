"""A small OpenAI-compatible server that is not ours: it may lack fields, counts, or manners."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["FakePeer", "running_peer"]

_OPENAI_FIELDS = frozenset({"model", "prompt", "max_tokens", "temperature", "stream"})

# What a stream says instead of text, by the fault's name: no JSON, or JSON of other kinds than the API's.
_PIECES = {
    "garbage": b"{]",
    "list": b"[1]",
    "number": b"5",
    "usage": b'{"usage": [1]}',
    "counts": b'{"usage": {"completion_tokens": {}}}',
    "choices": b'{"choices": 7}',
    "choice": b'{"choices": ["a"]}',
    "deep": b"[" * 100_000,
}


@dataclass
class FakePeer:
    """How it behaves, and the bodies that it was sent. A word is a token, and one is added to each prompt.

    `faults` are used up one a stream: `status`, `error` (in the stream), `break` (no end), `empty`,
    `slow`, and those of `_PIECES`.
    """

    models: tuple[str, ...] | None = ("peer",)
    fields: frozenset[str] = _OPENAI_FIELDS | {"stream_options", "ignore_eos"}
    tells_usage: bool = True
    key: str | None = None
    keep_alive: bool = True
    idle_seconds: float | None = None
    longest_answer: int = 1000
    delay: float = 0.0
    faults: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    @property
    def streams(self) -> list[dict[str, Any]]:
        """The bodies of streams, less the questions before."""
        return [body for body in self.bodies if body.get("stream") and body["prompt"] != "the"]


@contextmanager
def running_peer(peer: FakePeer) -> Iterator[FakePeer]:
    """The peer at a port of its own, `peer.url`."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.peer = peer
    peer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield peer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    peer: FakePeer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def setup(self) -> None:
        self.peer = self.server.peer
        self.peer.connections += 1
        self.protocol_version = "HTTP/1.1" if self.peer.keep_alive else "HTTP/1.0"
        super().setup()
        self.connection.settimeout(self.peer.idle_seconds)

    def do_GET(self) -> None:
        if self.peer.key is not None and self.headers.get("Authorization") != f"Bearer {self.peer.key}":
            self._answer(401, {"error": {"message": "no such key"}})
        elif self.peer.models is None:
            self._answer(404, {"error": {"message": "no such route"}})
        else:
            self._answer(200, {"data": [{"id": name} for name in self.peer.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if unknown := sorted(set(body) - self.peer.fields):
            self._answer(400, {"error": {"message": f"unknown field {unknown[0]}"}})
            return
        self.peer.bodies.append(body)
        self.peer.times.append(time.perf_counter())
        measured = body["prompt"] != "the"
        fault = self.peer.faults.pop(0) if measured and body.get("stream") and self.peer.faults else None
        if fault == "status":
            self._answer(429, {"error": {"message": "too many"}})
        elif body.get("stream"):
            self._stream(body, fault)
        else:
            self._answer(200, {"choices": [{"text": "a"}], "usage": _usage(self.peer, body, 1)})

    def _stream(self, body: dict[str, Any], fault: str | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if self.peer.keep_alive:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = 0 if fault == "empty" else min(body["max_tokens"], self.peer.longest_answer)
        for _ in range(count):
            time.sleep(2.0 if fault == "slow" else self.peer.delay)
            self._write(_PIECES.get(fault or "") or _event({"choices": [{"text": "word "}]}))
            if fault == "break":
                self.close_connection = True
                return
        if fault == "error":
            self._write(_event({"error": {"message": "it burns"}}))
        if self.peer.tells_usage and body.get("stream_options"):
            self._write(_event({"choices": [], "usage": _usage(self.peer, body, count)}))
        self._write(b"[DONE]")
        if self.peer.keep_alive:
            self.wfile.write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        event = b": comment\n\ndata: " + data + b"\n\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event) if self.peer.keep_alive else event)

    def _answer(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def _event(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _usage(peer: FakePeer, body: dict[str, Any], completion_tokens: int) -> dict[str, int] | None:
    if not peer.tells_usage:
        return None
    prompt = body["prompt"]
    tokens = len(prompt.split()) + 1 if isinstance(prompt, str) else len(prompt)
    return {"prompt_tokens": tokens, "completion_tokens": completion_tokens}
