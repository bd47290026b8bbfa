"""The server's log: one line an event on stderr, for people or as JSON, written by a thread of its own."""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from typing import Any, Literal

__all__ = ["LogFormat", "LogLevel", "logging_to_stderr"]

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_MOST_WAITING = 10_000
_FLUSH_SECONDS = 2.0
_LIBRARY = "uvicorn"


@contextmanager
def logging_to_stderr(form: LogFormat = "text", level: LogLevel = "info") -> Iterator[None]:
    """Send the log to stderr while the context is open.

    A reader that does not read costs log lines, which are counted, and never holds
    up a request.
    """
    written: queue.Queue[logging.LogRecord | None] = queue.Queue(_MOST_WAITING)
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    handler = _LossyHandler(written)
    listener = QueueListener(written, writer)
    root, library = logging.getLogger(), logging.getLogger(_LIBRARY)
    before = root.level, library.level
    root.setLevel(level.upper())
    library.setLevel(max(logging.WARNING, root.level))
    root.addHandler(handler)
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before[0])
        library.setLevel(before[1])
        stopping = threading.Thread(target=listener.stop, daemon=True)
        stopping.start()
        stopping.join(_FLUSH_SECONDS)  # a blocked stderr must not keep the process from ending


class _LossyHandler(QueueHandler):
    """Drops records while the queue is full, and says how many once it is not."""

    def __init__(self, target: queue.Queue[logging.LogRecord | None]) -> None:
        super().__init__(target)
        self._num_lost = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # same process: nothing has to be made picklable

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
            if self._num_lost:
                self.queue.put_nowait(_loss(self._num_lost))
                self._num_lost = 0
        except queue.Full:
            self._num_lost += 1


def _loss(count: int) -> logging.LogRecord:
    return logging.LogRecord(
        __name__, logging.WARNING, __file__, 0, "%d log lines were lost: stderr is not read", (count,), None
    )


class _TextFormatter(logging.Formatter):
    """`2026-11-30T12:00:00.123 INFO message name=value ...`"""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time_of(record)} {record.levelname} {record.getMessage()}"
        shown = {name: value for name, value in _fields(record).items() if value not in (None, "")}
        line += "".join(f" {name}={_quoted(value)}" for name, value in shown.items())
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _JsonFormatter(logging.Formatter):
    """One JSON object a line; an exception's trace is one of its strings."""

    def format(self, record: logging.LogRecord) -> str:
        content = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content, default=str)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    return getattr(record, "fields", {})


def _time_of(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _quoted(value: object) -> str:
    """Text with spaces or control characters as a JSON string: one event stays one line."""
    text = str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)
