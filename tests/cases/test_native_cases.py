"""Cases from the field that only a compiled engine can answer: its numbers, its caches, its start."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from typing import Any

import psutil
import pytest

import gristmill
from gristmill.facade import engine_folder
from gristmill.runtime.executors.base import KVDtype
from gristmill.runtime.llm import load_engine
from gristmill.runtime.outputs import RequestOutput
from gristmill.runtime.settings import EngineSettings
from tests.command_line import CommandLine

GREEDY = gristmill.SamplingParams(temperature=0.0, max_tokens=24, logprobs=2, ignore_eos=True)
PROMPT = "The miller has twelve sacks of flour, and the baker wants to know"


def _what_is_loaded() -> tuple[frozenset[str], int]:
    return frozenset(sys.modules), len(psutil.Process().open_files())


def generate(built: CommandLine, prompts: list[str], **settings: Any) -> list[RequestOutput]:
    with gristmill.LLM("tiny", store=built.store, settings=EngineSettings(**settings)) as llm:
        return llm.generate(prompts, GREEDY)


def test_c04_each_phase_of_a_start_is_told_with_its_time(built: CommandLine) -> None:
    lines: list[str] = []
    load_engine(engine_folder("tiny", store=built.store), report=lines.append).close()
    phases = "engine file and plan", "weights and cache", "proof", "tokenizer"
    times = ", ".join(rf"{phase} [\d.]+ s" for phase in phases)
    assert re.fullmatch(rf"tiny: loaded in [\d.]+ s: {times}", lines[-1])


def test_c04_the_first_request_does_nothing_that_the_tenth_does_not(built: CommandLine) -> None:
    """As many steps, and nothing is imported or opened for it."""
    steps: list[int] = []
    engine = load_engine(engine_folder("tiny", store=built.store), EngineSettings(prefix_caching=False))
    with closing(engine):
        before = _what_is_loaded()
        for number in range(10):
            engine.add_request(str(number), engine.prepare(PROMPT, GREEDY))
            steps.append(0)
            while engine.has_work:
                engine.step()
                steps[-1] += 1
            assert _what_is_loaded() == before, f"request {number}"
    assert len(set(steps)) == 1


def test_c34_a_greedy_answer_is_the_same_alone_and_in_a_batch_of_32(built: CommandLine) -> None:
    """To the last bit of its log probabilities, whatever stands beside it."""
    (alone,) = generate(built, [PROMPT], max_num_seqs=32)
    others = [f"Number {number}: " + "stone " * number for number in range(31)]
    batch = generate(built, [*others[:16], PROMPT, *others[16:]], max_num_seqs=32)
    assert batch[16].outputs == alone.outputs


@pytest.mark.parametrize("kv", ["bfloat16", "fp8", "int8"])
def test_c36_no_format_of_the_cache_turns_prefix_caching_off(built: CommandLine, kv: KVDtype) -> None:
    settings = EngineSettings(kv_cache_dtype=kv)
    with gristmill.LLM("tiny", store=built.store, settings=settings) as llm:
        (first,) = llm.generate(PROMPT * 3, GREEDY)
        (second,) = llm.generate(PROMPT * 3, GREEDY)
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens > 0.9 * len(second.prompt_token_ids) - 16
    assert second.outputs == first.outputs
