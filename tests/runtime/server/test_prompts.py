"""Prompts are read beside the event loop, in bounds, and one client's salt is not another's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.errors import RequestError
from gristmill.runtime.server.prompts import PromptReader, cache_salt_of
from gristmill.runtime.tokenizer import Tokenizer

MakeEngine = Callable[..., LLMEngine]


def test_the_event_loop_goes_on_while_prompts_are_read(make_engine: MakeEngine) -> None:
    reader = PromptReader(make_engine())
    gate = threading.Event()

    async def read() -> None:
        reading = [asyncio.create_task(reader.run(lambda: gate.wait(10))) for _ in range(20)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert not any(task.done() for task in reading)
        gate.set()
        assert all(await asyncio.gather(*reading))

    asyncio.run(read())


def test_other_work_on_threads_does_not_wait_for_prompts(make_engine: MakeEngine) -> None:
    reader = PromptReader(make_engine())
    gate = threading.Event()

    async def work() -> str:
        reading = [asyncio.create_task(reader.run(lambda: gate.wait(10))) for _ in range(50)]
        await asyncio.sleep(0)
        answer = await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 5)
        gate.set()
        await asyncio.gather(*reading)
        return answer

    assert asyncio.run(work()) == "done"


def test_no_more_prompts_wait_than_could_be_queued(make_engine: MakeEngine) -> None:
    reader = PromptReader(make_engine(max_num_seqs=2, max_waiting=1))
    gate = threading.Event()

    async def read() -> None:
        reading = [asyncio.create_task(reader.run(lambda: gate.wait(10))) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as caught:
            await reader.run(lambda: None)
        assert caught.value.code == "queue_full"
        assert caught.value.retry_after is not None
        gate.set()
        await asyncio.gather(*reading)
        await reader.run(lambda: None)

    asyncio.run(read())


def test_a_text_that_can_never_fit_is_refused_before_it_is_tokenized(make_engine: MakeEngine) -> None:
    reader = PromptReader(make_engine())
    with pytest.raises(RequestError, match="3000000 characters") as caught:
        reader.check_length("x" * 3_000_000)
    assert caught.value.code == "context_length_exceeded"


def test_a_text_that_may_fit_is_left_to_the_tokenizer(make_engine: MakeEngine) -> None:
    PromptReader(make_engine()).check_length("x" * 256 * 9)  # the longest token has 9 characters


@given(first=st.tuples(st.text(), st.text()), second=st.tuples(st.text(), st.text()))
def test_no_two_pairs_of_key_and_salt_share_a_salt(first: tuple[str, str], second: tuple[str, str]) -> None:
    assert (cache_salt_of(*first) == cache_salt_of(*second)) == (first == second)


def test_without_key_and_salt_there_is_none() -> None:
    assert cache_salt_of("", "") == ""


@pytest.mark.parametrize("text", ["hi", "<|start|>hi"])
def test_a_prompt_starts_once_whoever_wrote_the_start(start_tokenizer: Tokenizer, text: str) -> None:
    assert start_tokenizer.encode_prompt(text, add_special_tokens=True) == [257, *b"hi"]


def test_a_start_that_is_written_twice_stays(byte_tokenizer: Tokenizer, start_tokenizer: Tokenizer) -> None:
    twice = "<|start|><|start|>"
    adds_none = replace(byte_tokenizer, special_tokens={"bos_token": "<|start|>"})
    assert adds_none.encode_prompt(twice, add_special_tokens=True) == [257, 257]
    assert start_tokenizer.encode_prompt(twice, add_special_tokens=False) == [257, 257]
    assert start_tokenizer.encode_prompt(twice, add_special_tokens=True) == [257, 257]
