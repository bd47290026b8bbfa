"""/metrics: the counters add up to what clients were told."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import httpx
import openai

from gristmill.runtime.engine import LLMEngine

MakeEngine = Callable[..., LLMEngine]


def scrape(url: str) -> dict[str, float]:
    text = httpx.get(f"{url}/metrics").text
    samples = re.findall(r'^gristmill:(\w+)\{model_name="m"\} (\S+)$', text, re.MULTILINE)
    ended = re.findall(
        r'^gristmill:request_success_total\{finished_reason="(\w+)".*\} (\S+)$', text, re.MULTILINE
    )
    return {name: float(value) for name, value in (*samples, *ended)}


def test_names_are_those_of_vllm_under_our_prefix(make_engine: MakeEngine, serve: Callable[..., Any]) -> None:
    found = scrape(serve(m=make_engine()).url)
    expected = {
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "num_preemptions_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "stop",
        "length",
        "abort",
        "error",
    }
    assert expected <= set(found)
    assert all(found[name] == 0.0 for name in expected)


def test_counters_equal_the_usage_reported(make_engine: MakeEngine, serve: Callable[..., Any]) -> None:
    """Eight clients over a small cache: streams and whole answers, one or two of them, stops and lengths."""
    server = serve(m=make_engine("hash", num_blocks=24, max_num_seqs=6, max_num_batched_tokens=20))
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    def ask(seed: int) -> tuple[int, int, int]:
        choose = random.Random(seed)
        request: dict[str, Any] = {
            "model": "m",
            "prompt": "x" * choose.randint(1, 40),
            "max_tokens": choose.randint(1, 20),
            "n": choose.randint(1, 2),
            "seed": seed,
        }
        if choose.random() < 0.5:
            usage = client.completions.create(**request).usage
        else:
            options: Any = {"include_usage": True}
            *_, last = client.completions.create(stream=True, stream_options=options, **request)
            usage = last.usage
        return usage.prompt_tokens, usage.completion_tokens, request["n"]

    with client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(60)))
    found = scrape(server.url)
    assert found["prompt_tokens_total"] == sum(prompt for prompt, _, _ in answers)
    assert found["generation_tokens_total"] == sum(tokens for _, tokens, _ in answers)
    num_answers = sum(n for _, _, n in answers)
    assert found["stop"] + found["length"] == num_answers
    assert found["time_to_first_token_seconds_count"] == num_answers
    assert found["e2e_request_latency_seconds_count"] == num_answers
    assert found["inter_token_latency_seconds_count"] == found["generation_tokens_total"] - num_answers
    assert found["num_requests_running"] == found["num_requests_waiting"] == found["kv_cache_usage_perc"] == 0


def test_aborted_answers_are_counted_and_gauges_return_to_zero(
    make_engine: MakeEngine, serve: Callable[..., Any]
) -> None:
    server = serve(m=make_engine(delay=0.01))
    body = {"model": "m", "prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True, "n": 2}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        busy = scrape(server.url)
    assert busy["num_requests_running"] == 2
    assert busy["kv_cache_usage_perc"] > 0
    end = time.monotonic() + 5
    while scrape(server.url)["num_requests_running"]:
        assert time.monotonic() < end
    found = scrape(server.url)
    assert (found["abort"], found["stop"], found["length"]) == (2, 0, 0)
    assert found["kv_cache_usage_perc"] == 0


def test_times_of_an_answer_add_up(make_engine: MakeEngine, serve: Callable[..., Any]) -> None:
    server = serve(m=make_engine("parrot", delay=0.005))
    body = {"model": "m", "prompt": "hello\n", "temperature": 0, "max_tokens": 20}
    for _ in range(3):
        assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200
    found = scrape(server.url)
    parts = ("request_queue_time", "request_prefill_time", "request_decode_time")
    assert all(found[f"{part}_seconds_count"] == 3 for part in parts)
    total = sum(found[f"{part}_seconds_sum"] for part in parts)
    assert abs(total - found["e2e_request_latency_seconds_sum"]) < 1e-6
    assert found["request_time_per_output_token_seconds_count"] == 3
    assert found["request_prompt_tokens_sum"] == 3 * 6
    assert found["request_generation_tokens_sum"] == found["generation_tokens_total"] == 3 * 6


def test_the_prefix_cache_counts_what_it_was_asked_and_found(
    make_engine: MakeEngine, serve: Callable[..., Any]
) -> None:
    server = serve(m=make_engine("parrot"))
    body = {"model": "m", "prompt": "hello again\n", "temperature": 0, "max_tokens": 20}
    for _ in range(2):
        httpx.post(f"{server.url}/v1/completions", json=body)
    found = scrape(server.url)
    assert 0 < found["prefix_cache_hits_total"] < found["prefix_cache_queries_total"]
    assert found["num_cached_blocks"] > 0


def test_outcomes_add_up_with_what_was_refused(make_engine: MakeEngine, serve: Callable[..., Any]) -> None:
    gate = threading.Event()
    server = serve(m=make_engine("parrot", max_num_seqs=1, max_waiting=1, gate=gate))
    body = {"model": "m", "prompt": "hello\n", "temperature": 0, "max_tokens": 20}

    def ask(changed: dict[str, Any]) -> httpx.Response:
        return httpx.post(f"{server.url}/v1/completions", json=body | changed, timeout=30)

    answers = [ask({"temperature": -1}), ask({"model": "other"})]
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(ask, {}) for _ in range(12)]
        next(as_completed(asked))  # only a refusal ends while no step runs
        gate.set()
    answers += [future.result() for future in asked]
    text = httpx.get(f"{server.url}/metrics").text
    counted = {
        (status, code): int(float(value))
        for code, status, value in re.findall(
            r'^gristmill:http_requests_total\{code="(\w*)",handler="completions",status="(\d+)"\} (\S+)$',
            text,
            re.MULTILINE,
        )
    }
    received = Counter(
        (str(answer.status_code), answer.headers.get("x-error-code", "")) for answer in answers
    )
    assert counted == received
    assert {("400", "invalid_value"), ("404", "model_not_found"), ("429", "queue_full")} <= set(counted)
    found = scrape(server.url)
    assert found["request_accepted_total"] == received["200", ""] == found["stop"]


def test_the_process_tells_its_memory(make_engine: MakeEngine, serve: Callable[..., Any]) -> None:
    text = httpx.get(f"{serve(m=make_engine()).url}/metrics").text
    resident = re.findall(r"^process_resident_memory_bytes (\S+)$", text, re.MULTILINE)
    assert float(resident[0]) > 1 << 20
