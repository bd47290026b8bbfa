"""Lines of the server's log: for people, as JSON, and never in the way."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time

import pytest

from gristmill.runtime.server.logs import LogFormat, logging_to_stderr

LOGGER = logging.getLogger("gristmill.test")
FIELDS = {"fields": {"request_id": "r1", "tenant": "", "path": "/a b\n", "status": 200, "ttft_ms": None}}


def written(capfd: pytest.CaptureFixture[str], form: LogFormat) -> str:
    with logging_to_stderr(form, "info"):
        LOGGER.info("request", extra=FIELDS)
        LOGGER.debug("not this")
        try:
            raise ValueError("two\nlines")
        except ValueError:
            LOGGER.exception("a fault")
    return capfd.readouterr().err


def test_text_is_a_line_with_names_and_values(capfd: pytest.CaptureFixture[str]) -> None:
    first, second, *_ = written(capfd, "text").splitlines()
    assert re.fullmatch(
        r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO request request_id=r1 path="/a b\\n" status=200', first
    )
    assert second.endswith("ERROR a fault")


def test_json_is_one_object_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    first, second = map(json.loads, written(capfd, "json").splitlines())
    assert first.pop("time")
    assert first == {"level": "info", "logger": "gristmill.test", "message": "request", **FIELDS["fields"]}
    assert "two\nlines" in second["exception"]


def test_a_stderr_that_nobody_reads_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gristmill.runtime.server.logs._MOST_WAITING", 100)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stuck, os.fdopen(reading) as reader:
        monkeypatch.setattr(sys, "stderr", stuck)
        with logging_to_stderr():
            for _ in range(500):
                LOGGER.info("x" * 1000)  # far more than a pipe and the queue hold
            received: list[str] = []
            draining = threading.Thread(
                target=lambda: received.extend(iter(reader.readline, "")), daemon=True
            )
            draining.start()
            end = time.monotonic() + 10
            while not any("log lines were lost" in line for line in received):
                assert time.monotonic() < end
                LOGGER.info("again")
                time.sleep(0.01)
        monkeypatch.undo()
        stuck.flush()
        stuck.close()
        draining.join(10)
    lost = next(int(line.split()[2]) for line in received if "log lines were lost" in line)
    assert 0 < lost < 500
