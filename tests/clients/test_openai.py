"""The openai package against a real server: whole and streamed answers, sync and async, error classes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.served import RunningServer

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Who grinds the grain?"}]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_is_the_same_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=12, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_streaming_helper_puts_a_chat_together(client: openai.OpenAI) -> None:
    """The helper takes only chats that end by themselves: the end is made likely."""
    with client.chat.completions.stream(
        model="tiny",
        messages=MESSAGES,
        logprobs=True,
        top_logprobs=2,
        logit_bias={"2": 100},
        extra_body={"min_tokens": 5},
    ) as stream:
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content) >= 5
    assert len(choice.logprobs.content[0].top_logprobs) == 2


def test_completions_take_token_ids_echo_and_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt=[504, 260, 365], echo=True, logprobs=1, max_tokens=2, temperature=0
    )
    scores = answer.choices[0].logprobs
    assert scores is not None
    assert scores.token_logprobs is not None
    assert len(scores.token_logprobs) == 3 + 2
    assert scores.token_logprobs[0] is None


def test_many_asynchronous_streams_end_whole(server: RunningServer) -> None:
    async def one(client: openai.AsyncOpenAI) -> int:
        stream = await client.completions.create(
            model="tiny",
            prompt="Once",
            max_tokens=9,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        reasons = [chunk.choices[0].finish_reason async for chunk in stream]
        return reasons.count("length")

    async def all_of_them() -> list[int]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client) for _ in range(16)))

    assert asyncio.run(all_of_them()) == [1] * 16


def test_a_stream_that_is_closed_early_leaves_the_server_well(client: openai.OpenAI) -> None:
    with client.completions.create(model="tiny", prompt="Once", max_tokens=400, stream=True) as stream:
        next(iter(stream))
    assert client.completions.create(model="tiny", prompt="Once", max_tokens=1).choices


def test_the_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "gristmill"


def test_errors_are_of_the_client_s_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="none", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt=[1] * 600)
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model="tiny", prompt="Once", temperature=-1)
    assert missing.value.code == "model_not_found"
    assert long.value.code == "context_length_exceeded"
    assert wrong.value.param == "temperature"


def test_keys_are_asked_for(keyed_server: RunningServer) -> None:
    base = f"{keyed_server.url}/v1"
    with openai.OpenAI(base_url=base, api_key="wrong", max_retries=0) as stranger:
        for ask in (stranger.models.list, lambda: stranger.completions.create(model="tiny", prompt="Once")):
            with pytest.raises(openai.AuthenticationError):
                ask()
    with openai.OpenAI(base_url=base, api_key="a-key-for-tests", max_retries=0) as client:
        assert client.completions.create(model="tiny", prompt="Once", max_tokens=1).choices


def test_a_key_that_asks_too_much_at_once_is_told_to_wait(keyed_server: RunningServer) -> None:
    with (
        openai.OpenAI(base_url=f"{keyed_server.url}/v1", api_key="a-key-for-tests", max_retries=0) as client,
        client.completions.create(
            model="tiny", prompt="Once", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        ) as stream,
    ):
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(model="tiny", prompt="Once")
    assert int(refused.value.response.headers["retry-after"]) >= 1
