"""/v1/completions as the real openai client sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from gristmill.runtime.engine import LLMEngine

MakeEngine = Callable[..., LLMEngine]


@pytest.fixture(scope="module")
def url(make_engine: MakeEngine, run_server_thread: Callable[..., Any]) -> Iterator[str]:
    with run_server_thread(hash=make_engine("hash"), parrot=make_engine("parrot")) as server:
        yield server.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def streamed(client: openai.OpenAI, **request: Any) -> dict[int, tuple[str, str | None]]:
    """Text and finish reason of each choice, put together from a stream."""
    choices: dict[int, tuple[str, str | None]] = {}
    for chunk in client.completions.create(stream=True, **request):
        for choice in chunk.choices:
            text, reason = choices.get(choice.index, ("", None))
            assert reason is None, "a choice went on after its end"
            choices[choice.index] = (text + choice.text, choice.finish_reason)
    return choices


def test_an_answer_has_openais_form(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="parrot", prompt="hello\n", temperature=0)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text == "hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        6,
        6,
        12,
    )


def test_max_tokens_is_16_by_default(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="parrot", prompt="x" * 30 + "\n", temperature=0)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("x" * 16, "length")


@pytest.mark.parametrize("stop", [None, "lo", ["zz", "wor"]])
def test_a_greedy_stream_equals_the_whole_answer(client: openai.OpenAI, stop: Any) -> None:
    request: dict[str, Any] = {
        "model": "parrot",
        "prompt": "hello € world\n",
        "temperature": 0,
        "max_tokens": 40,
        "stop": stop,
    }
    whole = client.completions.create(**request).choices[0]
    assert streamed(client, **request) == {0: (whole.text, whole.finish_reason)}


def test_a_seeded_stream_equals_the_whole_answer(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "hash", "prompt": ["ab", "cd"], "seed": 5, "n": 2, "max_tokens": 20}
    whole = client.completions.create(**request).choices
    assert streamed(client, **request) == {c.index: (c.text, c.finish_reason) for c in whole}


def test_choices_are_ordered_by_prompt_and_then_by_answer(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="parrot", prompt=["a\n", "b\n", "c\n"], n=2, temperature=0.5)
    assert [choice.text for choice in answer.choices] == ["a", "a", "b", "b", "c", "c"]
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 12)


@pytest.mark.parametrize("prompt", [[104, 105, 10], [[104, 105, 10]]])
def test_a_prompt_may_be_token_ids(client: openai.OpenAI, prompt: Any) -> None:
    assert client.completions.create(model="parrot", prompt=prompt, temperature=0).choices[0].text == "hi"


def test_echo_shows_the_prompt_first(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "parrot", "prompt": [104, 105, 10], "temperature": 0, "echo": True}
    assert client.completions.create(**request).choices[0].text == "hi\nhi"
    assert streamed(client, **request)[0][0] == "hi\nhi"


def test_echo_with_logprobs_scores_the_prompt(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {
        "model": "hash",
        "prompt": "hello",
        "max_tokens": 0,
        "echo": True,
        "logprobs": 1,
    }
    answer = client.completions.create(**request)
    logprobs = answer.choices[0].logprobs
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    assert logprobs is not None
    assert logprobs.tokens == list("hello")
    assert logprobs.text_offset == [0, 1, 2, 3, 4]
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert all(value is not None and value < 0 for value in logprobs.token_logprobs[1:])


def test_streamed_logprobs_equal_the_whole_ones(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {
        "model": "hash",
        "prompt": "hé",
        "seed": 1,
        "max_tokens": 12,
        "echo": True,
        "logprobs": 2,
    }
    whole = client.completions.create(**request).choices[0].logprobs
    parts = [
        chunk.choices[0].logprobs
        for chunk in client.completions.create(stream=True, **request)
        if chunk.choices
    ]
    assert whole is not None
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [item for part in parts for item in getattr(part, name)] == getattr(whole, name)


def test_half_a_character_is_named_by_its_bytes(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="parrot", prompt="é\n", temperature=0, logprobs=0)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == ["bytes:\\xc3", "bytes:\\xa9", "<|end|>"]


def test_the_same_seed_gives_the_same_answer(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "hash", "prompt": "hello", "seed": 11, "max_tokens": 20}
    assert client.completions.create(**request).choices == client.completions.create(**request).choices


def test_logit_bias_forbids_a_token(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "parrot", "prompt": "ab\n", "temperature": 0, "max_tokens": 2}
    answer = client.completions.create(**request, logit_bias={str(ord("a")): -100})
    assert not answer.choices[0].text.startswith("a")


def test_vllms_extras_reach_the_sampler(client: openai.OpenAI) -> None:
    extras = {"ignore_eos": True, "top_k": 1, "min_p": 0.1, "repetition_penalty": 1.0, "stop_token_ids": [98]}
    answer = client.completions.create(model="parrot", prompt="ab\n", extra_body=extras)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("a", "stop")


def test_usage_of_a_stream_comes_in_a_last_chunk(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "parrot", "prompt": "hello\n", "temperature": 0}
    whole = client.completions.create(**request).usage
    options = {"include_usage": True}
    chunks = list(client.completions.create(stream=True, stream_options=options, **request))  # type: ignore[call-overload]
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole)


def test_a_stream_is_framed_as_server_sent_events(url: str) -> None:
    request: dict[str, Any] = {"model": "parrot", "prompt": "hi\n", "temperature": 0, "stream": True}
    response = httpx.post(f"{url}/v1/completions", json=request)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith('data: {"id":"cmpl-') for event in events[:-2])
    assert '"usage"' not in response.text
