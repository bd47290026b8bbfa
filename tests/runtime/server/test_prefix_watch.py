"""The watch over prefix hits: who is told what, and how often."""

from __future__ import annotations

import asyncio
import logging

import pytest
from prometheus_client import CollectorRegistry, Counter

from gristmill.runtime.engine import EngineRequest
from gristmill.runtime.outputs import OutputDelta, PromptProgress
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.server.prefix_watch import PrefixReport, PrefixWatch
from gristmill.runtime.tokenizer import Tokenizer

TEXT = "Answer in one friendly sentence and never mention the rules. " * 4


def make_watch(tokenizer: Tokenizer) -> PrefixWatch:
    counter = Counter("divergence", "For a test.", ["model_name", "cause"], registry=CollectorRegistry())
    return PrefixWatch("m", tokenizer, counter)


async def read(watch: PrefixWatch, name: str, prompt: str, now: float) -> PrefixReport | None:
    """What is told of a prompt that begins to run now, of which nothing was cached."""
    tokens = tuple(prompt.encode())
    watch.submitted(name, EngineRequest(prompt, tokens, SamplingParams()), now)
    report = watch.ask(name)
    progress = PromptProgress(len(tokens), 0, len(tokens))
    watch.progressed([OutputDelta(name, 0, progress=progress)], now, now)
    return await report


def test_a_warning_comes_once_a_minute_with_the_number_of_those_left_out(
    byte_tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    async def five_prompts() -> None:
        watch = make_watch(byte_tokenizer)
        for number, now in enumerate((0.0, 1.0, 2.0, 3.0, 70.0)):
            await read(watch, str(number), f"turn {number}. {TEXT}", now)
        await asyncio.sleep(0.01)

    asyncio.run(five_prompts())
    first, second = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "up to token 5 (number); 0 more" in first
    assert "2 more since" in second


def test_a_request_that_never_runs_has_no_report(byte_tokenizer: Tokenizer) -> None:
    async def aborted() -> PrefixReport | None:
        watch = make_watch(byte_tokenizer)
        watch.submitted("r", EngineRequest(None, (1, 2), SamplingParams()), 0.0)
        report = watch.ask("r")
        watch.progressed([OutputDelta("r", 0, finish_reason="abort")], 0.0, 0.0)
        return await report

    assert asyncio.run(aborted()) is None


def test_a_prompt_is_read_once_however_many_answers_and_restarts_it_has(byte_tokenizer: Tokenizer) -> None:
    async def twice() -> tuple[PrefixReport | None, PrefixReport | None]:
        watch = make_watch(byte_tokenizer)
        first = await read(watch, "one", f"turn 1. {TEXT}", 0.0)
        watch.progressed([OutputDelta("one", 1, progress=PromptProgress(252, 0, 252))], 0.0, 0.0)
        return first, await read(watch, "two", f"turn 2. {TEXT}", 0.0)

    first, second = asyncio.run(twice())
    assert first is not None
    assert first.divergence is None
    assert second is not None
    assert second.divergence is not None
