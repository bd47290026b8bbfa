"""What a stream says beside its text: comments while it waits, progress of the prompt, token counts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.server.settings import ServerSettings

MakeEngine = Callable[..., LLMEngine]
Serve = Callable[..., Any]
TEXT: dict[str, Any] = {"model": "m", "prompt": "x" * 30 + "\n", "temperature": 0, "max_tokens": 8}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "x" * 30}],
    "temperature": 0,
    "max_tokens": 8,
}
ENDPOINTS = [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)]
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.fixture(scope="module")
def url(make_engine: MakeEngine, run_server_thread: Callable[..., Any]) -> Iterator[str]:
    with run_server_thread(m=make_engine("parrot", max_num_seqs=8, max_num_batched_tokens=8)) as server:
        yield server.url


def chunks_of(text: str) -> list[dict[str, Any]]:
    events = [event for event in text.split("\n\n") if event.startswith("data: {")]
    return [json.loads(event.removeprefix("data: ")) for event in events]


def stream(url: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    return chunks_of(httpx.post(url + path, json=body | {"stream": True}, timeout=20).text)


def text_of(chunk: dict[str, Any]) -> str:
    return "".join(
        choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in chunk["choices"]
    )


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_a_stream_that_waits_sends_comments_and_then_its_text(
    make_engine: MakeEngine, serve: Serve, path: str, body: dict[str, Any]
) -> None:
    gate = threading.Event()
    server = serve(settings=ServerSettings(ping_seconds=0.02), m=make_engine("parrot", gate=gate))
    with httpx.stream("POST", server.url + path, json=body | {"stream": True}, timeout=20) as response:
        lines = response.iter_lines()
        assert [next(lines) for _ in range(4)] == [": ping", "", ": ping", ""]
        gate.set()
        rest = [line for line in lines if line and line != ": ping"]
    assert response.status_code == 200
    assert all(line.startswith("data: ") for line in rest)
    chunks = [json.loads(line.removeprefix("data: ")) for line in rest[:-1]]
    assert "".join(text_of(chunk) for chunk in chunks) == "x" * 8
    assert rest[-1] == "data: [DONE]"


def test_a_stream_that_fails_after_a_comment_ends_with_the_error(
    make_engine: MakeEngine, serve: Serve
) -> None:
    gate = threading.Event()
    engine = make_engine("parrot", gate=gate, fail_on=ord("x"))
    server = serve(settings=ServerSettings(ping_seconds=0.02), m=engine)
    with httpx.stream("POST", f"{server.url}/v1/completions", json=TEXT | {"stream": True}) as response:
        lines = response.iter_lines()
        assert next(lines) == ": ping"
        gate.set()
        rest = [line for line in lines if line and line != ": ping"]
    assert response.status_code == 200
    assert json.loads(rest[0].removeprefix("data: "))["error"]["type"] == "server_error"
    assert rest[1:] == ["data: [DONE]"]


def test_a_stream_that_fails_before_a_comment_has_the_errors_status(
    make_engine: MakeEngine, serve: Serve
) -> None:
    server = serve(m=make_engine("parrot", fail_on=ord("x")))
    assert httpx.post(f"{server.url}/v1/completions", json=TEXT | {"stream": True}).status_code == 500


def test_a_client_that_leaves_a_waiting_stream_frees_its_place(make_engine: MakeEngine, serve: Serve) -> None:
    gate = threading.Event()
    engine = make_engine("parrot", gate=gate)
    server = serve(settings=ServerSettings(ping_seconds=0.02), m=engine)
    with httpx.stream("POST", f"{server.url}/v1/completions", json=TEXT | {"stream": True}) as response:
        next(response.iter_lines())
    gate.set()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.post, f"{server.url}/v1/completions", json=TEXT, timeout=10).result()
    assert answer.status_code == 200
    assert engine.stats().num_running == 0


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_progress_tells_how_far_the_prompt_is_read(url: str, path: str, body: dict[str, Any]) -> None:
    chunks = stream(url, path, body | {"return_progress": True, "cache_salt": path})
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    processed = [step["processed"] for step in progress]
    assert len(progress) >= 4
    assert {step["total"] for step in progress} == {31}
    assert {step["cache"] for step in progress} == {0}
    assert processed == sorted(processed)
    assert processed[-1] == 31
    assert [step["time_ms"] for step in progress] == sorted(step["time_ms"] for step in progress)
    assert all(text_of(chunk) == "" for chunk in chunks if "prompt_progress" in chunk)
    assert "".join(map(text_of, chunks)) == "x" * 8


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_without_being_asked_for_a_stream_tells_no_progress(
    url: str, path: str, body: dict[str, Any]
) -> None:
    assert not any("prompt_progress" in chunk for chunk in stream(url, path, body))


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_the_counts_so_far_grow_to_the_whole_answers(url: str, path: str, body: dict[str, Any]) -> None:
    body = body | {"cache_salt": f"counts {path}"}
    chunks = stream(url, path, body | WITH_USAGE)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 8
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {31}
    assert chunks[-1]["choices"] == []


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_cached_tokens_are_counted_alike_in_both_modes(url: str, path: str, body: dict[str, Any]) -> None:
    body = body | {"cache_salt": f"cached {path}"}
    first = httpx.post(url + path, json=body).json()["usage"]
    whole = httpx.post(url + path, json=body).json()["usage"]
    streamed = stream(url, path, body | WITH_USAGE)[-1]["usage"]
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert 0 < whole["prompt_tokens_details"]["cached_tokens"] < 31
    assert streamed == whole


def test_a_cached_prompt_serves_its_own_salt_only(url: str) -> None:
    def cached(salt: dict[str, str]) -> int:
        body = TEXT | {"prompt": "y" * 30, "max_tokens": 1} | salt
        usage = httpx.post(f"{url}/v1/completions", json=body).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached({}), cached({"cache_salt": "a"}), cached({"cache_salt": "b"})] == [0, 0, 0]
    assert all(cached(salt) > 0 for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}))
