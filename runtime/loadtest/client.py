"""A client of an OpenAI-compatible server that measures its own requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gristmill.runtime.loadtest.http import Connection, Endpoint, HttpError, NoAnswerError, Receive
from gristmill.runtime.loadtest.records import Record

__all__ = ["CompletionClient", "Prompt", "error_message"]

Prompt = str | list[int]

_DONE = b"[DONE]"


@dataclass(slots=True)
class CompletionClient:
    """Streams completions over connections that it keeps.

    `extras` are the fields beyond OpenAI's that the server knows (see
    `probe.py`); `timeout` is the most seconds of one request.
    """

    endpoint: Endpoint
    model: str = ""
    api_key: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 600.0
    _idle: list[Connection] = field(default_factory=list)

    async def complete(self, prompt: Prompt, output_tokens: int, due: float | None = None) -> Record:
        """Ask for a completion and measure it; whatever goes wrong is in the record.

        `due` is when the request ought to be sent (`time.perf_counter`), so that a client that is late
        counts as the server's queue would; None is as soon as the request is written out.
        """
        asked = {"model": self.model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0.0}
        body = json.dumps({**asked, "stream": True, **self.extras}, separators=(",", ":")).encode()
        if due is not None and (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        record = Record(due if due is not None else time.perf_counter())
        try:
            async with asyncio.timeout(self.timeout):
                await self._stream(body, record)
        except TimeoutError:
            record.error, record.detail = "timeout", f"no end after {self.timeout:g} s"
        except HttpError as error:
            record.error, record.detail = "connection", str(error)
        except OSError as error:
            record.error, record.detail = "connection", error.strerror or str(error)
        except ValueError as error:
            record.error, record.detail = "no JSON", str(error)
        record.ended = time.perf_counter()
        return record

    async def ask(self, method: str, path: str, fields: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and body of a request that is not measured. Raises HttpError, OSError, TimeoutError."""
        pieces: list[bytes] = []
        body = b"" if fields is None else json.dumps(fields).encode()
        async with asyncio.timeout(self.timeout):
            status = await self._exchange(method, path, body, lambda _, piece: pieces.append(piece))
        return status, b"".join(pieces)

    def close(self) -> None:
        """Hang up."""
        while self._idle:
            self._idle.pop().close()

    async def _stream(self, body: bytes, record: Record) -> None:
        events, refusal = _Events(record), bytearray()

        def receive(status: int, piece: bytes) -> None:
            if status == 200:
                events.feed(piece)
            else:
                refusal.extend(piece)

        status = await self._exchange("POST", "/v1/completions", body, receive)
        if status == 200:
            events.end()
        else:
            record.error, record.detail = f"http {status}", error_message(bytes(refusal))

    async def _exchange(self, method: str, path: str, body: bytes, receive: Receive) -> int:
        """One request on a kept connection, on a new one if the server has closed it meanwhile."""
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        while self._idle and not self._idle[-1].alive:
            self._idle.pop()
        connection = self._idle.pop() if self._idle else await Connection.open(self.endpoint)
        try:
            status = await connection.exchange(method, path, body, headers, receive)
        except NoAnswerError:
            if not connection.used:
                raise
            return await self._exchange(method, path, body, receive)  # it was closed as we wrote
        if connection.alive:
            self._idle.append(connection)
        else:
            connection.close()
        return status


def error_message(body: bytes) -> str:
    """The message of an error's body, in OpenAI's form or any other."""
    text = body.decode(errors="replace")
    try:
        error = json.loads(text)
        error = error.get("error", error)
        return str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError, RecursionError):
        return text[:200]


class _Events:
    """Reads server-sent events into a record; comments and fields other than data are skipped."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._rest = b""
        self._done = False

    def feed(self, piece: bytes) -> None:
        """Read on. Raises ValueError for data that is no JSON."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._read(line[5:].strip())

    def end(self) -> None:
        """The answer is over: it must have ended well and said something."""
        record = self._record
        if record.error is None and not self._done:
            record.error, record.detail = "stream broken", "it ended without [DONE]"
        elif record.error is None and record.first is None:
            record.error, record.detail = "no text", "the answer was empty"

    def _read(self, data: bytes) -> None:
        if data == _DONE:
            self._done = True
            return
        try:
            self._note(json.loads(data.decode()))
        except (AttributeError, TypeError, RecursionError) as error:  # parts of other kinds than the API's
            raise ValueError(f"{data[:80]!r} instead of a piece of a completion") from error

    def _note(self, event: Any) -> None:
        record = self._record
        if (error := event.get("error")) is not None:
            record.error = "error in the stream"
            record.detail = str(error.get("message", error) if isinstance(error, dict) else error)
        if (usage := event.get("usage")) is not None:
            record.counted = True
            record.prompt_tokens = int(usage.get("prompt_tokens", 0))
            record.output_tokens = int(usage.get("completion_tokens", 0))
            details = usage.get("prompt_tokens_details") or {}
            record.cached_tokens = int(details.get("cached_tokens") or 0)
        for choice in event.get("choices") or ():
            if choice.get("text"):
                record.text_at(time.perf_counter())
