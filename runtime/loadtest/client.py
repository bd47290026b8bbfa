"""A client of an OpenAI-compatible server that measures its own requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gristmill.runtime.loadtest.http import Connection, Endpoint, HttpError
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
        body = b"" if fields is None else json.dumps(fields).encode()
        async with asyncio.timeout(self.timeout):
            connection, status = await self._send(method, path, body)
            data = await connection.body()
        self._give_back(connection)
        return status, data

    def close(self) -> None:
        """Hang up."""
        while self._idle:
            self._idle.pop().close()

    async def _stream(self, body: bytes, record: Record) -> None:
        connection, status = await self._send("POST", "/v1/completions", body)
        try:
            if status != 200:
                record.error, record.detail = f"http {status}", error_message(await connection.body())
            else:
                await _read_events(connection, record)
        except BaseException:
            connection.close()  # the rest of this answer must not become the next one's
            raise
        self._give_back(connection)

    async def _send(self, method: str, path: str, body: bytes) -> tuple[Connection, int]:
        """Send on a kept connection, on a new one if the server has closed it meanwhile."""
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        while True:
            connection = self._idle.pop() if self._idle else await Connection.open(self.endpoint)
            try:
                connection.send(method, path, body, headers)
                return connection, await connection.status()
            except (HttpError, OSError):
                connection.close()
                if not connection.used:
                    raise
            except BaseException:
                connection.close()
                raise

    def _give_back(self, connection: Connection) -> None:
        if connection.alive:
            connection.used = True
            self._idle.append(connection)
        else:
            connection.close()


def error_message(body: bytes) -> str:
    """The message of an error's body, in OpenAI's form or any other."""
    text = body.decode(errors="replace")
    try:
        error = json.loads(text)
        error = error.get("error", error)
        return str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        return text[:200]


async def _read_events(connection: Connection, record: Record) -> None:
    ended = False
    async for event in _events(connection):
        if event == _DONE:
            ended = True
        else:
            _read_event(json.loads(event), record)
    if record.error is None and not ended:
        record.error, record.detail = "stream broken", "it ended without [DONE]"
    elif record.error is None and record.first is None:
        record.error, record.detail = "no text", "the answer was empty"


async def _events(connection: Connection) -> AsyncIterator[bytes]:
    """The data of each server-sent event; comments and other fields are skipped."""
    rest = b""
    async for piece in connection.pieces():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _read_event(event: dict[str, Any], record: Record) -> None:
    if (error := event.get("error")) is not None:
        record.error = "error in the stream"
        record.detail = str(error.get("message", error) if isinstance(error, dict) else error)
    if (usage := event.get("usage")) is not None:
        record.counted = True
        record.prompt_tokens = usage.get("prompt_tokens", 0)
        record.output_tokens = usage.get("completion_tokens", 0)
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    for choice in event.get("choices") or ():
        if choice.get("text"):
            record.text_at(time.perf_counter())
