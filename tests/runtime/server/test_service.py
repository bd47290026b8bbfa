"""A server's life: loading, ready, draining, and what it answers at each time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.errors import IntegrityError, InternalError
from gristmill.runtime.server.models import LoadedModel
from gristmill.runtime.server.settings import ServerSettings

MakeEngine = Callable[..., LLMEngine]
Serve = Callable[..., Any]
BODY = {"model": "m", "prompt": "hello\n", "temperature": 0, "max_tokens": 20}


def get(url: str, path: str) -> tuple[int, Any]:
    response = httpx.get(f"{url}{path}")
    return response.status_code, response.json()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def test_a_failing_load_ends_the_server_with_its_error(serve: Serve) -> None:
    def load(tell: Callable[[str], None]) -> list[LoadedModel]:
        raise IntegrityError("the golden logits differ")

    server = serve(load=load)
    server.join()
    assert isinstance(server.error, IntegrityError)


def test_a_drain_answers_new_connections_and_ends_with_the_last_stream(
    make_engine: MakeEngine, serve: Serve
) -> None:
    gate = threading.Event()
    server = serve(m=make_engine("parrot", gate=gate))
    path = f"{server.url}/v1/completions"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(httpx.post, path, json=BODY, timeout=30)
        wait_until(lambda: " 1.0" in metric(server.url, "num_requests_running"))
        server.stop()
        wait_until(lambda: get(server.url, "/ready")[0] == 503)
        refused = httpx.post(path, json=BODY)
        assert get(server.url, "/health") == (200, {"status": "draining"})
        assert get(server.url, "/ready")[1]["status"] == "draining"
        gate.set()
        assert running.result().json()["choices"][0]["text"] == "hello"
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert refused.headers["connection"] == "close"
    assert 1 <= int(refused.headers["retry-after"]) <= 10
    server.join()
    assert server.error is None


def test_what_waits_in_the_queue_is_served_before_the_end(make_engine: MakeEngine, serve: Serve) -> None:
    gate = threading.Event()
    server = serve(m=make_engine("parrot", gate=gate, max_num_seqs=1))
    with ThreadPoolExecutor(3) as pool:
        answers = [
            pool.submit(httpx.post, f"{server.url}/v1/completions", json=BODY, timeout=30) for _ in range(3)
        ]
        wait_until(lambda: " 2.0" in metric(server.url, "num_requests_waiting"))
        server.stop()
        gate.set()
        assert [answer.result().status_code for answer in answers] == [200] * 3


def test_a_whole_answer_that_the_grace_period_cuts_short_is_an_error(
    make_engine: MakeEngine, serve: Serve
) -> None:
    server = serve(0.1, m=make_engine(delay=0.02))
    body = BODY | {"max_tokens": 200, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(httpx.post, f"{server.url}/v1/completions", json=body, timeout=30)
        wait_until(lambda: " 1.0" in metric(server.url, "num_requests_running"))
        server.stop()
        answer = running.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")


def test_an_engine_that_never_ends_its_step_does_not_keep_the_server(
    make_engine: MakeEngine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    for name in ("_ABORT_SECONDS", "_CLOSE_SECONDS"):
        monkeypatch.setattr(f"gristmill.runtime.server.service.{name}", 0.1)
    server = serve(0.0, m=make_engine("parrot", gate=gate))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(httpx.post, f"{server.url}/v1/completions", json=BODY, timeout=30)
        wait_until(lambda: " 1.0" in metric(server.url, "num_requests_running"))
        server.stop()
        server.join()
        assert isinstance(server.error, InternalError)
        assert running.exception() is not None or running.result().status_code >= 500
    gate.set()


def test_ready_names_its_models(make_engine: MakeEngine, serve: Serve) -> None:
    server = serve(m=make_engine(), other=make_engine())
    assert get(server.url, "/ready") == (200, {"status": "ready", "models": ["m", "other"]})
    assert get(server.url, "/health") == (200, {"status": "ok"})


@pytest.mark.parametrize(
    "changes",
    [
        {"grace_seconds": -1.0},
        {"stall_seconds": 0.0},
        {"max_open_per_tenant": 0},
        {"admin_token": ""},
        {"memory_soft": 2, "memory_restart": 1},
    ],
)
def test_settings_that_can_not_be_meant_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=next(iter(changes))):
        ServerSettings(**changes)


def metric(url: str, name: str) -> str:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return next(line for line in lines if line.startswith(f"gristmill:{name}{{"))
