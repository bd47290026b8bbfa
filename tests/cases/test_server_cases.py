"""Cases from the field on what a client meets: aborts, drains, bad requests, streams, accounting."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.tokenizer import Tokenizer

MakeEngine = Callable[..., LLMEngine]
Serve = Callable[..., Any]
BODY: dict[str, Any] = {"model": "m", "prompt": "hello\n", "temperature": 0, "max_tokens": 60}
ENDLESS = BODY | {"max_tokens": 200, "ignore_eos": True}


def post(url: str, **changes: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json=BODY | changes, timeout=20)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def streamed(url: str, **changes: Any) -> list[Any]:
    events = post(url, stream=True, **changes).text.split("\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in events if event not in ("", "data: [DONE]")]


def pieces(url: str, **changes: Any) -> list[str]:
    return [chunk["choices"][0]["text"] for chunk in streamed(url, **changes)]


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it never happened"
        time.sleep(0.002)
    return time.monotonic() - start


def gauges(url: str) -> list[float]:
    """Running and waiting requests, share of the cache in use."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    prefixes = tuple(f"gristmill:{name}{{" for name in names)
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return [float(line.split()[-1]) for line in lines if line.startswith(prefixes)]


@pytest.fixture(scope="module")
def url(make_engine: MakeEngine, run_server_thread: Callable[..., Any]) -> Iterator[str]:
    with run_server_thread(m=make_engine("parrot")) as server:
        yield server.url


def test_c14_a_thousand_requests_at_once_meet_a_bounded_queue(make_engine: MakeEngine, serve: Serve) -> None:
    server = serve(m=make_engine("parrot", delay=0.002, max_num_seqs=4, max_waiting=16))
    path = f"{server.url}/v1/completions"
    with httpx.Client(timeout=30) as client, ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: client.post(path, json=BODY), range(1000)))
    served = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(served) + len(refused) == 1000
    assert served
    assert refused
    assert all("retry-after" in answer.headers for answer in refused)
    assert all(text_of(answer) == "hello" for answer in served)


def test_c17_a_client_killed_after_one_token_frees_its_cache_at_once(
    make_engine: MakeEngine, serve: Serve
) -> None:
    """Within one step and 200 ms; the best of three, for a machine that is busy with other things."""
    engine = make_engine(delay=0.02)
    server = serve(m=engine)
    delays = []
    for _ in range(3):
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json=ENDLESS | {"stream": True}
        ) as response:
            lines = response.iter_lines()
            next(lines)
        delays.append(wait_until(lambda: engine.stats().num_free_blocks == 64))
    assert min(delays) < 0.02 + 0.2


def test_c21_a_drain_finishes_the_open_streams(make_engine: MakeEngine, serve: Serve) -> None:
    gate = threading.Event()
    server = serve(m=make_engine("parrot", gate=gate, num_blocks=512, max_num_seqs=20))
    with ThreadPoolExecutor(20) as pool:
        open_streams = [pool.submit(pieces, server.url) for _ in range(20)]
        wait_until(lambda: sum(gauges(server.url)[:2]) == 20)
        server.stop()
        gate.set()
        assert ["".join(stream.result()) for stream in open_streams] == ["hello"] * 20


def test_c24_a_bias_for_a_token_beyond_the_vocabulary_is_refused(url: str) -> None:
    response = post(url, logit_bias={"260": 1})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logit_bias")
    assert text_of(post(url)) == "hello"


def test_c25_a_bias_for_something_that_is_no_token_is_refused(url: str) -> None:
    response = post(url, logit_bias={"AI": 1})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logit_bias")


def test_c26_a_prompt_can_be_scored_without_generating(url: str) -> None:
    choice = post(url, echo=True, max_tokens=0, logprobs=0).json()["choices"][0]
    assert choice["text"] == "hello\n"
    assert len(choice["logprobs"]["token_logprobs"]) == 6


@pytest.mark.parametrize(
    ("changes", "found"), [({"prompt": "x" * 300}, "300"), ({"max_tokens": 10**9}, "1000000000")]
)
def test_c28_what_exceeds_the_context_is_refused_with_both_numbers(
    url: str, changes: dict[str, Any], found: str
) -> None:
    response = post(url, **changes)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert found in error["message"]
    assert "256 tokens" in error["message"]


@pytest.mark.parametrize("text", ["🙂👩‍👩‍👧🇨🇿", "Příliš žluťoučký kůň", "שלום עולם", "你好，世界"])
def test_c29_characters_of_several_tokens_arrive_whole(url: str, text: str) -> None:
    whole = text_of(post(url, prompt=f"{text}\n", max_tokens=100))
    stream = pieces(url, prompt=f"{text}\n", max_tokens=100)
    assert whole == text == "".join(stream)
    assert not any("\ufffd" in piece for piece in stream)


def test_c30_no_part_of_a_stop_string_is_streamed(url: str) -> None:
    stream = pieces(url, prompt="ABCDEFGHIJKL\n", stop="DEFGHIJ")
    assert "".join(stream) == "ABC"
    assert pieces(url, prompt="ABCDEFGX\n", stop="DEFGHIJ")[3:] != []
    assert "".join(pieces(url, prompt="ABCDEFGX\n", stop="DEFGHIJ")) == "ABCDEFGX"


def test_c33_a_start_token_is_never_added_twice(
    make_engine: MakeEngine, serve: Serve, start_tokenizer: Tokenizer
) -> None:
    server = serve(m=make_engine("hash", tokenizer=start_tokenizer))
    plain = post(server.url, prompt="hello").json()
    message = {"role": "user", "content": "hello"}
    body = {"model": "m", "messages": [message], "max_tokens": 1}
    chat = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()
    assert plain["usage"]["prompt_tokens"] == 1 + len("hello")
    assert chat["usage"]["prompt_tokens"] == 1 + len("hello\n")


def test_c44_gauges_return_to_zero_when_everything_is_aborted(make_engine: MakeEngine, serve: Serve) -> None:
    gate = threading.Event()
    engine = make_engine(gate=gate, num_blocks=512, max_num_seqs=32)
    server = serve(m=engine)

    with httpx.Client() as client, ThreadPoolExecutor(20) as pool:
        for _ in range(20):
            pool.submit(client.post, f"{server.url}/v1/completions", json=ENDLESS, timeout=0.5)
        wait_until(lambda: sum(gauges(server.url)[:2]) == 20)
    gate.set()
    wait_until(lambda: gauges(server.url) == [0.0, 0.0, 0.0])


def test_c45_usage_is_the_same_streamed_and_whole(url: str) -> None:
    *_, last = streamed(url, n=2, temperature=0.1, seed=1, stream_options={"include_usage": True})
    assert last["usage"] == post(url, n=2, temperature=0.1, seed=1).json()["usage"]


@pytest.mark.parametrize(
    "changes", [{"tool_choice": "auto"}, {"guided_json": {}}, {"best_of": 4}, {"max_token": 5}, {"stops": ""}]
)
def test_c47_what_is_not_done_is_refused_by_name(url: str, changes: dict[str, Any]) -> None:
    response = post(url, **changes)
    assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(changes)))


def test_c47_what_is_accepted_is_done(url: str) -> None:
    answer = post(url, n=2, temperature=0.1, stop=["l"], max_tokens=60).json()
    assert [(choice["text"], choice["finish_reason"]) for choice in answer["choices"]] == [("he", "stop")] * 2
