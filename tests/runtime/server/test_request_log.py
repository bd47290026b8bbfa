"""One line a request: who, what came of it, how long it took; never what was asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.server.keys import parse_api_key
from gristmill.runtime.server.settings import ServerSettings

MakeEngine = Callable[..., LLMEngine]
Serve = Callable[..., Any]
BODY = {"model": "m", "prompt": "a secret\n", "temperature": 0, "max_tokens": 20}


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gristmill.requests")


def lines(caplog: pytest.LogCaptureFixture, count: int) -> list[dict[str, Any]]:
    """The fields of the log's request lines, once there are so many: a line follows its response."""
    end = time.monotonic() + 10
    while True:
        found = [vars(r)["fields"] for r in caplog.records if r.name == "gristmill.requests"]
        if len(found) >= count:
            return found
        assert time.monotonic() < end, found
        time.sleep(0.005)


def test_a_generation_is_told_in_tokens_and_milliseconds(
    make_engine: MakeEngine, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServerSettings(api_keys=(parse_api_key("team:one"),))
    server = serve(settings=settings, m=make_engine("parrot"))
    headers = {"Authorization": "Bearer one", "X-Request-Id": "mine"}
    answer = httpx.post(f"{server.url}/v1/completions", json=BODY, headers=headers)
    assert answer.headers["x-request-id"] == "mine"
    (line,) = lines(caplog, 1)
    told = {name: value for name, value in line.items() if not name.endswith("_ms")}
    assert told == {
        "request_id": "mine",
        "tenant": "team",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "model": "m",
        "prompt_tokens": 9,
        "cached_tokens": 0,
        "completion_tokens": 9,
        "finish_reason": "stop",
        "preemptions": 0,
        "recomputed_tokens": 0,
    }
    assert 0 <= line["queue_ms"] <= line["ttft_ms"] <= line["total_ms"]


def test_no_line_holds_a_prompt_or_a_key(
    make_engine: MakeEngine, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(settings=ServerSettings(api_keys=(parse_api_key("team:k3y"),)), m=make_engine("parrot"))
    for key in ("k3y", "wr0ng"):
        headers = {"Authorization": f"Bearer {key}"}
        httpx.post(f"{server.url}/v1/completions", json=BODY, headers=headers)
        httpx.post(f"{server.url}/v1/completions", json=BODY | {"prompt": 5}, headers=headers)
    told = str(lines(caplog, 4)) + caplog.text
    assert not any(secret in told for secret in ("a secret", "k3y", "wr0ng"))


def test_a_line_is_short_whatever_was_called_for(
    make_engine: MakeEngine, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(m=make_engine("parrot"))
    assert httpx.request("M" * 5000, f"{server.url}/{'a' * 5000}").status_code == 404
    (line,) = lines(caplog, 1)
    assert len(line["path"]) + len(line["method"]) < 500


def test_every_response_carries_the_requests_id(make_engine: MakeEngine, serve: Serve) -> None:
    url = serve(m=make_engine("parrot")).url
    answers = [
        httpx.get(f"{url}/health"),
        httpx.get(f"{url}/nowhere"),
        httpx.post(f"{url}/v1/completions", json={}),
        httpx.post(f"{url}/v1/completions", json=BODY | {"stream": True}),
        httpx.get(f"{url}/admin/stats"),
    ]
    assert all(answer.headers["x-request-id"] for answer in answers)
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)


def test_an_id_that_is_not_fit_for_a_log_is_replaced(make_engine: MakeEngine, serve: Serve) -> None:
    url = serve(m=make_engine("parrot")).url
    given = "x" * 500
    assert httpx.get(f"{url}/health", headers={"X-Request-Id": given}).headers["x-request-id"] != given


def test_a_refusal_is_told_with_its_code(
    make_engine: MakeEngine, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(m=make_engine("parrot"))
    httpx.post(f"{server.url}/v1/completions", json=BODY | {"model": "other"})
    (line,) = lines(caplog, 1)
    assert (line["status"], line["error"]) == (404, "model_not_found")


def test_a_client_that_leaves_is_told_as_an_abort(
    make_engine: MakeEngine, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(m=make_engine(delay=0.01))
    body = BODY | {"stream": True, "max_tokens": 200, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as stream:
        received = stream.iter_lines()
        next(received)
    (line,) = lines(caplog, 1)
    assert line["finish_reason"] == "abort"
    assert 0 < line["completion_tokens"] < 200


def test_looking_at_the_server_leaves_no_line(
    make_engine: MakeEngine, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(m=make_engine("parrot"))
    for path in ("/health", "/ready", "/metrics", "/info"):
        assert httpx.get(f"{server.url}{path}").status_code == 200
    httpx.get(f"{server.url}/v1/models")
    assert [line["path"] for line in lines(caplog, 1)] == ["/v1/models"]
