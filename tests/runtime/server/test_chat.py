"""/v1/chat/completions and /v1/models as the real openai client sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from gristmill.runtime.engine import LLMEngine

MakeEngine = Callable[..., LLMEngine]


@pytest.fixture(scope="module")
def client(make_engine: MakeEngine, run_server_thread: Callable[..., Any]) -> Iterator[openai.OpenAI]:
    with (
        run_server_thread(parrot=make_engine("parrot"), hash=make_engine("hash")) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def ask(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_an_answer_has_openais_form(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="parrot", messages=ask("hello"), temperature=0)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", "hello")
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 6)


def test_a_stream_names_the_role_once_and_the_reason_last(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(model="parrot", messages=ask("hey"), temperature=0, stream=True)
    )
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    assert [delta.content for delta in deltas] == ["", "h", "e", "y", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, None, "stop"]


def test_several_streamed_answers_equal_the_whole_ones(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "hash", "messages": ask("hello"), "seed": 4, "n": 3, "max_tokens": 15}
    whole = client.chat.completions.create(**request)
    texts = {choice.index: "" for choice in whole.choices}
    for chunk in client.chat.completions.create(stream=True, **request):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {choice.index: choice.message.content for choice in whole.choices}


def test_logprobs_are_given_for_each_token(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "parrot", "messages": ask("é"), "logprobs": True, "top_logprobs": 2}
    choice = client.chat.completions.create(temperature=0, **request).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [entry.bytes for entry in choice.logprobs.content] == [[0xC3], [0xA9], list(b"<|end|>")]
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    streamed = [
        entry
        for chunk in client.chat.completions.create(temperature=0, stream=True, **request)
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == choice.logprobs.content


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_bound_the_answer(client: openai.OpenAI, name: str) -> None:
    limit: dict[str, Any] = {name: 2}
    answer = client.chat.completions.create(model="parrot", messages=ask("hello"), temperature=0, **limit)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("he", "length")


def test_without_a_bound_the_answer_may_fill_the_context(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="parrot", messages=ask("hello"), temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.total_tokens == 256


def test_parts_of_text_are_joined(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]
    messages: list[Any] = [{"role": "user", "content": parts}]
    answer = client.chat.completions.create(model="parrot", messages=messages, temperature=0)
    assert answer.choices[0].message.content == "abcd"


def test_tools_are_accepted_for_the_template(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    answer = client.chat.completions.create(model="parrot", messages=ask("hi"), tools=tools, temperature=0)
    assert answer.choices[0].message.content == "hi"


def test_models_are_listed_and_found_by_id(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["parrot", "hash"]
    model = client.models.retrieve("hash")
    assert (model.id, model.object, model.owned_by) == ("hash", "model", "gristmill")
    with pytest.raises(openai.NotFoundError, match="no such model"):
        client.models.retrieve("a/b")


def test_the_asynchronous_client_streams_many_chats_at_once(client: openai.OpenAI) -> None:
    async def chat(client: openai.AsyncOpenAI, text: str) -> str:
        stream = await client.chat.completions.create(
            model="parrot", messages=ask(text), temperature=0, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def chat_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="none") as many:
            return await asyncio.gather(*(chat(many, f"text {index}") for index in range(8)))

    assert asyncio.run(chat_all()) == [f"text {index}" for index in range(8)]
