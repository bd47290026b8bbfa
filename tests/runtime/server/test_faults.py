"""Full queues, failing steps and a drain: every request gets a true answer, and the server lives on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from gristmill.runtime.engine import LLMEngine

MakeEngine = Callable[..., LLMEngine]

# The parrot says "b" where it would end: a token that enters the model only as part of the answer.
B_AFTER_THE_END = {"256": -100, "98": 10}


def post(url: str, **changes: Any) -> httpx.Response:
    body = {"model": "m", "prompt": "hello\n", "temperature": 0, "max_tokens": 30} | changes
    return httpx.post(f"{url}/v1/completions", json=body, timeout=20)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def gauge(url: str, state: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    (line,) = [line for line in text.splitlines() if line.startswith(f"gristmill:num_requests_{state}{{")]
    return float(line.split()[-1])


def events(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_full_queue_is_answered_at_once_with_429(
    make_engine: MakeEngine, serve: Callable[..., Any]
) -> None:
    gate = threading.Event()
    engine = make_engine("parrot", gate=gate, max_num_seqs=1, max_waiting=2)
    server = serve(m=engine)
    with ThreadPoolExecutor(3) as pool:
        accepted = [pool.submit(post, server.url) for _ in range(3)]
        wait_until(lambda: gauge(server.url, "waiting") == 2)
        refused = post(server.url)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == "queue_full"
        gate.set()
        assert [answer.result().status_code for answer in accepted] == [200, 200, 200]
    assert post(server.url).status_code == 200


def test_openai_raises_its_rate_limit_error(make_engine: MakeEngine, serve: Callable[..., Any]) -> None:
    gate = threading.Event()
    server = serve(m=make_engine("parrot", gate=gate, max_num_seqs=1, max_waiting=0))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(post, server.url)
        wait_until(lambda: gauge(server.url, "running") == 1)
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with client, pytest.raises(openai.RateLimitError):
            client.completions.create(model="m", prompt="x")
        gate.set()
        assert running.result().status_code == 200


def test_a_failing_step_is_a_500_and_the_next_request_is_served(
    make_engine: MakeEngine, serve: Callable[..., Any]
) -> None:
    server = serve(m=make_engine("parrot", fail_on=ord("#")))
    failed = post(server.url, prompt="#\n")
    assert (failed.status_code, failed.json()["error"]["type"]) == (500, "server_error")
    assert "fire" not in failed.text, "the inside is for the log"
    assert post(server.url).json()["choices"][0]["text"] == "hello"
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_stream_that_fails_before_its_first_token_is_a_500(
    make_engine: MakeEngine, serve: Callable[..., Any]
) -> None:
    server = serve(m=make_engine("parrot", fail_on=ord("#")))
    assert post(server.url, prompt="#\n", stream=True).status_code == 500


def test_a_stream_that_breaks_off_says_so(make_engine: MakeEngine, serve: Callable[..., Any]) -> None:
    server = serve(m=make_engine("parrot", fail_on=ord("b")))
    response = post(server.url, prompt="a\n", stream=True, logit_bias=B_AFTER_THE_END)
    assert response.status_code == 200
    first, second, error, done = events(response)
    assert [event["choices"][0]["text"] for event in (first, second)] == ["a", "b"]
    assert error["error"]["type"] == "server_error"
    assert done == "[DONE]"


def test_the_openai_client_sees_a_broken_stream(make_engine: MakeEngine, serve: Callable[..., Any]) -> None:
    server = serve(m=make_engine("parrot", fail_on=ord("b")))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(
            model="m", prompt="a\n", temperature=0, stream=True, logit_bias=B_AFTER_THE_END
        )
        with pytest.raises(openai.APIError, match="its log has the reason"):
            list(stream)


def test_one_of_several_prompts_that_fails_frees_the_others(
    make_engine: MakeEngine, serve: Callable[..., Any]
) -> None:
    engine = make_engine("parrot", fail_on=ord("#"), max_num_batched_tokens=16, max_num_seqs=1)
    server = serve(m=engine)
    assert post(server.url, prompt=["#\n", "x" * 30 + "\n"]).status_code == 500
    wait_until(lambda: engine.stats().num_free_blocks == 64)


def test_a_fault_in_the_front_end_is_a_500_and_no_more(
    make_engine: MakeEngine, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: no real request is known to cause one."""
    engine = make_engine("parrot")
    server = serve(m=engine)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "prepare", lambda *args, **options: 1 / 0)
        failed = post(server.url)
    assert (failed.status_code, failed.json()["error"]["type"]) == (500, "server_error")
    assert post(server.url).status_code == 200


def test_health_tells_that_an_engine_is_gone(
    make_engine: MakeEngine, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted faults that end the engine's thread."""
    dying = make_engine("parrot")
    server = serve(m=dying, other=make_engine("parrot"))
    for name in ("step", "fail"):
        monkeypatch.setattr(dying, name, lambda *args: 1 / 0)
    assert post(server.url).status_code == 500
    wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
    health = httpx.get(f"{server.url}/health").json()
    assert health == {"status": "unhealthy", "models": {"m": {"status": "dead"}}}
    assert post(server.url).status_code == 503
    assert post(server.url, model="other").status_code == 200


def test_a_drain_lets_running_requests_finish(make_engine: MakeEngine, serve: Callable[..., Any]) -> None:
    engine = make_engine("parrot", delay=0.02)
    server = serve(m=engine)
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(post, server.url, stream=stream) for stream in (False, True)]
        wait_until(lambda: engine.stats().num_running == 2)
        server.stop()
        whole, stream = (request.result() for request in running)
    assert whole.json()["choices"][0]["text"] == "hello"
    assert "".join(event["choices"][0]["text"] for event in events(stream)[:-1]) == "hello"
    server.join()
    with pytest.raises(httpx.ConnectError):
        post(server.url)


def test_requests_beyond_the_grace_period_are_ended_properly(
    make_engine: MakeEngine, serve: Callable[..., Any]
) -> None:
    engine = make_engine(delay=0.05)
    server = serve(0.3, m=engine)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(post, server.url, max_tokens=200, ignore_eos=True, stream=True)
        wait_until(lambda: engine.stats().num_running == 1)
        server.stop()
        received = events(running.result())
    assert len(received) < 200
    assert received[-1] == "[DONE]"
    assert received[-2]["error"]["code"] == "shutting_down"
