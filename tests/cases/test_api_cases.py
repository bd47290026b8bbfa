"""Cases from the field on requests and their answers, each for its whole kind and on both endpoints."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.server.settings import ServerSettings
from gristmill.runtime.tokenizer import Tokenizer

MakeEngine = Callable[..., LLMEngine]
Serve = Callable[..., Any]
Changes = dict[str, Any]
TEXT: Changes = {"prompt": "hello\n", "temperature": 0, "max_tokens": 60}
CHAT: Changes = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 60}
BODIES = {"/v1/completions": TEXT, "/v1/chat/completions": CHAT}
BEYOND = 260  # the first id that the vocabulary lacks

both = pytest.mark.parametrize("path", BODIES)


@pytest.fixture(scope="module")
def http(make_engine: MakeEngine, run_server_thread: Callable[..., Any]) -> Iterator[httpx.Client]:
    with (
        run_server_thread(m=make_engine("parrot")) as server,
        httpx.Client(base_url=server.url, timeout=20) as client,
    ):
        yield client


def ask(http: httpx.Client, path: str, **changes: Any) -> httpx.Response:
    return http.post(path, json=BODIES[path] | {"model": "m"} | changes)


def say(http: httpx.Client, path: str, text: str, **changes: Any) -> httpx.Response:
    """Ask a parrot to repeat one line."""
    prompt = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text + "\n"}
    return ask(http, path, **prompt, **changes)


def refused(response: httpx.Response) -> tuple[str | None, str]:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["code"]


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def chunks_of(response: httpx.Response) -> list[Changes]:
    assert response.status_code == 200, response.text
    events = [event for event in response.text.split("\n\n") if event.startswith("data: {")]
    return [json.loads(event.removeprefix("data: ")) for event in events]


def pieces_of(response: httpx.Response) -> list[str]:
    choices = [choice for chunk in chunks_of(response) for choice in chunk["choices"]]
    return [choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices]


@both
def test_c13_an_accepted_priority_is_echoed(http: httpx.Client, path: str) -> None:
    assert ask(http, path, priority=5).json()["priority"] == 5
    assert {chunk["priority"] for chunk in chunks_of(ask(http, path, priority=-2, stream=True))} == {-2}
    assert refused(ask(http, path, priority="urgent")) == ("priority", "invalid_value")


@both
def test_c22_comments_flow_while_a_request_waits_in_the_queue(
    make_engine: MakeEngine, serve: Serve, path: str
) -> None:
    gate = threading.Event()
    server = serve(
        settings=ServerSettings(ping_seconds=0.02), m=make_engine("parrot", gate=gate, max_num_seqs=1)
    )
    body = BODIES[path] | {"model": "m"}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(httpx.post, server.url + path, json=body, timeout=20)
        with httpx.stream("POST", server.url + path, json=body | {"stream": True}, timeout=20) as response:
            lines = response.iter_lines()
            assert [next(lines) for _ in range(6)] == [": ping", ""] * 3
            gate.set()
            assert list(lines)[-2] == "data: [DONE]"
        assert first.result().status_code == 200


@both
@pytest.mark.parametrize(
    "changes",
    [
        {"logit_bias": {str(BEYOND): 1}},
        {"logit_bias": {"99999999999": 1}},
        {"stop_token_ids": [BEYOND]},
        {"stop_token_ids": [-1]},
        {"allowed_token_ids": [BEYOND]},
        {"allowed_token_ids": [1, 2**64]},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_c24_a_token_beyond_the_vocabulary_is_refused_wherever_it_stands(
    http: httpx.Client, path: str, changes: Changes, stream: bool
) -> None:
    assert refused(ask(http, path, stream=stream, **changes)) == (next(iter(changes)), "invalid_value")
    assert text_of(ask(http, path)) == "hello"


@pytest.mark.parametrize("prompt", [[BEYOND], [[1], [BEYOND]], [-1], [2**64]])
def test_c24_a_prompt_of_unknown_tokens_is_refused(http: httpx.Client, prompt: Any) -> None:
    assert refused(ask(http, "/v1/completions", prompt=prompt)) == ("prompt", "invalid_value")


@both
@pytest.mark.parametrize("key", ["AI", "", "-1", "1.5", "1e1", "٣", "0x1", " 1", "9" * 400])
def test_c25_a_bias_for_what_is_no_token_id_is_refused(http: httpx.Client, path: str, key: str) -> None:
    assert refused(ask(http, path, logit_bias={key: 1})) == ("logit_bias", "invalid_value")


@both
@pytest.mark.parametrize("bias", ["1", None, True, 101, -1e300, [1]])
def test_c25_a_bias_that_is_no_number_in_range_is_refused(
    http: httpx.Client, path: str, bias: object
) -> None:
    assert refused(ask(http, path, logit_bias={"5": bias})) == ("logit_bias", "invalid_value")


@pytest.mark.parametrize("logprobs", [None, 0, 3])
@pytest.mark.parametrize("prompt", ["hello", [104, 105], ["hello", "ab"], [[104, 105], [97]]])
@pytest.mark.parametrize("stream", [False, True])
def test_c26_any_prompt_can_be_scored_without_generating(
    http: httpx.Client, prompt: Any, logprobs: int | None, stream: bool
) -> None:
    response = ask(
        http, "/v1/completions", prompt=prompt, echo=True, max_tokens=0, logprobs=logprobs, stream=stream
    )
    answers = chunks_of(response) if stream else [response.json()]
    choices = [choice for answer in answers for choice in answer["choices"]]
    assert {choice["text"] for choice in choices} <= {"hello", "hi", "ab", "a"}
    assert {choice["finish_reason"] for choice in choices} == {"length"}
    for choice in choices:
        scored = choice["logprobs"]
        assert (scored is None) == (logprobs is None)
        assert scored is None or len(scored["token_logprobs"]) == len(choice["text"])


@both
@pytest.mark.parametrize("missing", [{"max_tokens": None}, {}])
def test_c26_without_a_bound_there_is_a_sane_one(http: httpx.Client, path: str, missing: Changes) -> None:
    body = {key: value for key, value in BODIES[path].items() if key != "max_tokens"}
    usage = http.post(path, json=body | {"model": "m", "ignore_eos": True} | missing).json()["usage"]
    assert usage["completion_tokens"] == (16 if path == "/v1/completions" else 250)


@both
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("length", [256, 300, 5_000, 1_000_000])
def test_c28_a_prompt_beyond_the_context_is_refused_with_both_numbers(
    http: httpx.Client, path: str, stream: bool, length: int
) -> None:
    response = say(http, path, "x" * length, stream=stream)
    assert refused(response) == ("messages" if "chat" in path else "prompt", "context_length_exceeded")
    message = response.json()["error"]["message"]
    assert "256 tokens" in message
    assert str(length) in message or str(length + 1) in message


@both
@pytest.mark.parametrize("count", [251, 10**9, 2**63, 10**300])
def test_c28_a_huge_answer_is_refused_with_both_numbers(http: httpx.Client, path: str, count: int) -> None:
    response = ask(http, path, max_tokens=count)
    assert refused(response) == ("max_tokens", "context_length_exceeded")
    assert "256 tokens" in response.json()["error"]["message"]
    assert str(count) in response.json()["error"]["message"]


@both
@pytest.mark.parametrize("text", ["🙂👩‍👩‍👧🇨🇿", "Příliš žluťoučký kůň", "שלום עולם", "你好，世界"])
def test_c29_characters_of_several_tokens_arrive_whole(http: httpx.Client, path: str, text: str) -> None:
    stream = pieces_of(say(http, path, text, stream=True))
    assert text_of(say(http, path, text)) == text == "".join(stream)
    assert not any("\ufffd" in piece for piece in stream)


@both
@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_c29_a_stream_cut_in_a_character_equals_the_whole_answer(
    http: httpx.Client, path: str, max_tokens: int
) -> None:
    text = "é🙂天"
    whole = text_of(say(http, path, text, max_tokens=max_tokens))
    stream = pieces_of(say(http, path, text, max_tokens=max_tokens, stream=True))
    assert "".join(stream) == whole
    assert not any("\ufffd" in piece for piece in stream[:-2])


@both
@settings(max_examples=40)
@given(
    text=st.text("AB🙂", min_size=1, max_size=12),
    stops=st.lists(st.text("AB🙂", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_c30_a_stream_ends_before_the_first_stop_and_shows_no_part_of_it(
    http: httpx.Client, path: str, text: str, stops: list[str]
) -> None:
    ends = [text.find(stop) for stop in stops if stop in text]
    # The stop that is complete first ends the answer, the longest of those that are.
    done = min((text.find(stop) + len(stop) for stop in stops if stop in text), default=None)
    longest = max((stop for stop in stops if done and text[:done].endswith(stop)), key=len, default="")
    expected = text if not ends else text[: (done or 0) - len(longest)]
    stream = pieces_of(say(http, path, text, stop=stops, stream=True))
    assert "".join(stream) == expected == text_of(say(http, path, text, stop=stops))


@both
@pytest.mark.parametrize("stream", [False, True])
def test_c31_stop_texts_end_an_answer_of_token_ids(http: httpx.Client, path: str, stream: bool) -> None:
    response = say(http, path, "abcdef", stop="cd", return_token_ids=True, stream=stream)
    answers = chunks_of(response) if stream else [response.json()]
    choices = [choice for answer in answers for choice in answer["choices"]]
    token_ids = [token_id for choice in choices for token_id in choice.get("token_ids", ())]
    assert bytes(token_ids) == b"abcd"
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "cd")


def test_c33_a_rendered_chat_sent_as_text_starts_once(
    make_engine: MakeEngine, serve: Serve, start_tokenizer: Tokenizer
) -> None:
    server = serve(m=make_engine("hash", tokenizer=start_tokenizer))
    with httpx.Client(base_url=server.url) as http:
        rendered = http.post("/apply-template", json={"messages": CHAT["messages"]}).json()
        chat = ask(http, "/v1/chat/completions", max_tokens=1, return_token_ids=True).json()
        text = ask(
            http, "/v1/completions", prompt=rendered["prompt"], max_tokens=1, return_token_ids=True
        ).json()
        tokens = http.post("/tokenize", json={"prompt": rendered["prompt"]}).json()["tokens"]
        plain = ask(http, "/v1/completions", prompt="hello", max_tokens=1).json()
    assert rendered["prompt"] == "<|start|>hello\n"
    assert rendered["tokens"] == [257, *b"hello\n"]
    assert plain["usage"]["prompt_tokens"] == 1 + len("hello")
    assert chat["prompt_token_ids"] == text["choices"][0]["prompt_token_ids"] == tokens == rendered["tokens"]


@both
@pytest.mark.parametrize("changes", [{}, {"n": 3, "temperature": 0.1, "seed": 1}, {"stop": "l"}])
def test_c45_usage_is_the_same_streamed_and_whole(http: httpx.Client, path: str, changes: Changes) -> None:
    ask(http, path, **changes)  # what is cached is the same from here on
    whole = ask(http, path, **changes).json()["usage"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    *_, last = chunks_of(ask(http, path, stream=True, stream_options=options, **changes))
    assert last["usage"] == whole
    assert whole["prompt_tokens_details"]["cached_tokens"] > 0


def test_c45_each_prompt_of_a_list_counts_once(http: httpx.Client) -> None:
    changes: Changes = {"prompt": ["ab\n", "cde\n"], "n": 2, "temperature": 0.1, "seed": 1}
    whole = ask(http, "/v1/completions", **changes).json()["usage"]
    assert (whole["prompt_tokens"], whole["completion_tokens"]) == (7, 2 * 3 + 2 * 4)


@both
@pytest.mark.parametrize(
    "changes",
    [
        {"response_format": {"type": "json_object"}},
        {"guided_json": {}},
        {"guided_regex": "a"},
        {"structured_outputs": {"choice": ["a"]}},
        {"use_beam_search": True},
        {"logits_processors": ["x"]},
        {"prompt_embeds": "x"},
        {"max_token": 5},
        {"stops": ""},
        {"lora": "x"},
    ],
)
def test_c47_what_is_not_done_is_refused_by_name(http: httpx.Client, path: str, changes: Changes) -> None:
    param, code = refused(ask(http, path, **changes))
    assert param == next(iter(changes))
    assert code in {"unsupported_parameter", "unknown_parameter"}


@both
def test_c47_what_is_accepted_is_done(http: httpx.Client, path: str) -> None:
    answer = ask(http, path, n=2, temperature=0.1, stop=["l"], stream=False).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop"]
    assert text_of(ask(http, path, stop=["l"], include_stop_str_in_output=True)) == "hel"
    limited = ask(http, path, max_tokens=2).json()["choices"][0]
    assert limited["finish_reason"] == "length"
