"""vLLM's extras on both endpoints: each field changes the answer as it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gristmill.runtime.engine import LLMEngine

TEXT: dict[str, Any] = {"model": "hash", "prompt": "hello", "max_tokens": 6, "temperature": 0}
CHAT: dict[str, Any] = {
    "model": "hash",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 6,
    "temperature": 0,
}
ENDPOINTS = [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)]
both = pytest.mark.parametrize(("path", "body"), ENDPOINTS)


@pytest.fixture(scope="module")
def http(
    make_engine: Callable[..., LLMEngine], run_server_thread: Callable[..., Any]
) -> Iterator[httpx.Client]:
    with (
        run_server_thread(hash=make_engine("hash"), parrot=make_engine("parrot")) as server,
        httpx.Client(base_url=server.url, timeout=20) as client,
    ):
        yield client


def ask(http: httpx.Client, path: str, body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    response = http.post(path, json=body | changes)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def token_ids(answer: dict[str, Any]) -> list[int]:
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def test_the_likeliest_of_many_answers_are_shown(http: httpx.Client) -> None:
    request: dict[str, Any] = {"temperature": 1, "seed": 3, "logprobs": 0}
    made = ask(http, "/v1/completions", TEXT, n=5, **request)
    best = ask(http, "/v1/completions", TEXT, n=2, best_of=5, **request)

    def mean(choice: dict[str, Any]) -> float:
        scores = choice["logprobs"]["token_logprobs"]
        return float(sum(scores) / len(scores))

    likeliest = sorted(made["choices"], key=mean, reverse=True)[:2]
    assert [choice["text"] for choice in best["choices"]] == [choice["text"] for choice in likeliest]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert best["usage"]["completion_tokens"] == made["usage"]["completion_tokens"]


def test_best_of_shows_no_logprobs_that_were_not_asked_for(http: httpx.Client) -> None:
    answer = ask(http, "/v1/completions", TEXT, best_of=2, temperature=1)
    assert [choice["logprobs"] for choice in answer["choices"]] == [None]


def test_as_many_answers_as_are_shown_need_no_ranking(http: httpx.Client) -> None:
    request: dict[str, Any] = {"n": 2, "temperature": 1, "seed": 3}
    plain = ask(http, "/v1/completions", TEXT, **request)
    assert ask(http, "/v1/completions", TEXT, best_of=2, **request)["choices"] == plain["choices"]


def test_prompt_logprobs_have_vllms_form(http: httpx.Client) -> None:
    answer = ask(http, "/v1/completions", TEXT, prompt_logprobs=2, echo=True, logprobs=5)
    choice = answer["choices"][0]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    assert len(others) == len("ello")
    for place, (character, entry) in enumerate(zip("ello", others, strict=True), 1):
        own = entry[str(ord(character))]
        assert own["decoded_token"] == character
        assert own["logprob"] == choice["logprobs"]["token_logprobs"][place]
        ranks = sorted(token["rank"] for token in entry.values() if token["rank"] is not None)
        assert ranks == [1, 2]
    assert all(len(top) >= 5 for top in choice["logprobs"]["top_logprobs"][1:])


def test_a_chats_prompt_logprobs_stand_beside_its_choices(http: httpx.Client) -> None:
    scores = ask(http, "/v1/chat/completions", CHAT, prompt_logprobs=0)["prompt_logprobs"]
    assert [list(entry) for entry in scores[1:]] == [[str(byte)] for byte in b"ello\n"]


@both
def test_token_ids_are_shown(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = ask(http, path, body, return_token_ids=True)
    prompt = answer.get("prompt_token_ids") or answer["choices"][0]["prompt_token_ids"]
    assert bytes(prompt).rstrip() == b"hello"
    assert len(token_ids(answer)) == answer["usage"]["completion_tokens"]


@both
def test_streamed_token_ids_are_the_whole_answers(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    whole = ask(http, path, body, return_token_ids=True)
    text = http.post(path, json=body | {"return_token_ids": True, "stream": True}).text
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event.startswith("data: {")]
    chunks = [httpx.Response(200, content=event).json() for event in events]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [token for choice in choices for token in choice.get("token_ids", ())] == token_ids(whole)
    prompts = [part["prompt_token_ids"] for part in (*chunks, *choices) if "prompt_token_ids" in part]
    assert len(prompts) == 1


@both
def test_tokens_may_be_named_by_id(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    logprobs: Any = True if "messages" in body else 1
    answer = ask(http, path, body, logprobs=logprobs, return_tokens_as_token_ids=True, return_token_ids=True)
    shown = answer["choices"][0]["logprobs"]
    names = shown.get("tokens") or [entry["token"] for entry in shown["content"]]
    assert names == [f"token_id:{token_id}" for token_id in token_ids(answer)]


@both
def test_a_prompt_is_cut_to_its_end(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = ask(http, path, body, truncate_prompt_tokens=3, return_token_ids=True)
    prompt = answer.get("prompt_token_ids") or answer["choices"][0]["prompt_token_ids"]
    assert bytes(prompt) == (b"lo\n" if "messages" in body else b"llo")
    assert answer["usage"]["prompt_tokens"] == 3


def test_an_echo_shows_what_was_left_of_the_prompt(http: httpx.Client) -> None:
    answer = ask(http, "/v1/completions", TEXT, truncate_prompt_tokens=3, echo=True, logprobs=0)
    assert answer["choices"][0]["text"].startswith("llo")
    assert answer["choices"][0]["logprobs"]["tokens"][:3] == list("llo")


def test_a_prompt_beyond_the_context_can_be_cut_to_fit(http: httpx.Client) -> None:
    answer = ask(http, "/v1/completions", TEXT, prompt="x" * 400_000, truncate_prompt_tokens=-1)
    assert answer["usage"]["total_tokens"] == 256


@both
def test_an_accepted_priority_is_repeated(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    assert ask(http, path, body, priority=-3)["priority"] == -3
    assert "priority" not in ask(http, path, body)


@both
def test_only_allowed_tokens_are_written(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = ask(http, path, body, allowed_token_ids=[97, 98], return_token_ids=True, temperature=1, seed=1)
    assert len(token_ids(answer)) == 6
    assert set(token_ids(answer)) <= {97, 98}


def test_a_bad_word_is_not_written_but_its_parts_are(http: httpx.Client) -> None:
    request: dict[str, Any] = {"model": "parrot", "prompt": "abcabd\n"}
    assert ask(http, "/v1/completions", TEXT, **request)["choices"][0]["text"] == "abcabd"
    answer = ask(http, "/v1/completions", TEXT, bad_words=["abc"], max_tokens=3, **request)
    assert answer["choices"][0]["text"][:2] == "ab"
    assert answer["choices"][0]["text"] != "abc"
    assert ask(http, "/v1/completions", TEXT, bad_words=["bx"], **request)["choices"][0]["text"] == "abcabd"


def test_defaults_are_openais_whatever_the_model_recommends(http: httpx.Client) -> None:
    request: dict[str, Any] = {"model": "hash", "prompt": "hello", "seed": 7, "max_tokens": 12}
    plain = http.post("/v1/completions", json=request).json()["choices"]
    spelt = http.post(
        "/v1/completions", json=request | {"temperature": 1, "top_p": 1, "top_k": 0, "repetition_penalty": 1}
    ).json()["choices"]
    assert plain == spelt
