"""Cases from the field on scheduling and memory; ids as in the list of cases."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.errors import RequestError
from gristmill.runtime.outputs import OutputCollector, OutputDelta, RequestOutput
from gristmill.runtime.sampling.params import SamplingParams

MakeEngine = Callable[..., LLMEngine]
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


def collect(deltas: list[OutputDelta], request_id: str) -> RequestOutput:
    collector = OutputCollector(request_id, None, (), 1, logprobs=False)
    for delta in deltas:
        if delta.request_id == request_id:
            collector.add(delta)
    return collector.result()


def run(engine: LLMEngine, max_steps: int) -> list[OutputDelta]:
    deltas: list[OutputDelta] = []
    for _ in range(max_steps):
        deltas += engine.step()
        engine.check_integrity()
        if not engine.has_work:
            return deltas
    raise AssertionError(f"not done after {max_steps} steps")


def test_c03_scoring_a_long_prompt_takes_bounded_rows_and_lets_others_go_on(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=1024, max_scored_tokens=64)
    engine.add_request("other", engine.prepare("x", SamplingParams(max_tokens=100, ignore_eos=True)))
    scoring = SamplingParams(max_tokens=0, prompt_logprobs=1)
    engine.add_request("scored", engine.prepare("word " * 600, scoring))
    steps_with_the_other = 0
    deltas: list[OutputDelta] = []
    while not any(delta.request_id == "scored" and delta.finish_reason for delta in deltas):
        step = engine.step()
        steps_with_the_other += any(delta.request_id == "other" for delta in step)
        deltas += step
    assert steps_with_the_other >= 3000 // 64
    scores = collect(deltas, "scored").prompt_logprobs
    assert scores is not None
    assert len(scores) == 3000


def test_c08_a_running_answer_gets_a_token_in_each_step_of_a_burst(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(num_blocks=2048, max_num_batched_tokens=64)
    engine.add_request("victim", engine.prepare("x", SamplingParams(max_tokens=200, ignore_eos=True)))
    engine.step()
    for index in range(4):
        engine.add_request(str(index), engine.prepare("y" * 1500, GREEDY))
    for _ in range(90):
        assert "victim" in {delta.request_id for delta in engine.step()}


def test_c10_a_nearly_full_cache_and_a_long_request_never_stand_still(make_engine: MakeEngine) -> None:
    """The long request is longer than a step's budget and grows until the cache is full, twice over."""
    engine = make_engine(num_blocks=20, block_size=4, max_num_batched_tokens=8, max_num_seqs=4)
    engine.add_request("long", engine.prepare("x" * 30, SamplingParams(max_tokens=50, ignore_eos=True)))
    for index in range(6):
        engine.add_request(str(index), engine.prepare("y" * 20, GREEDY))
    run(engine, max_steps=400)
    assert engine.stats().num_preemptions <= 12


def test_c11_a_request_that_needs_more_cache_than_exists_is_refused_with_both_numbers(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(num_blocks=8, block_size=4)
    with pytest.raises(RequestError, match="found 40 prompt tokens; expected a context of 32"):
        engine.prepare("x" * 40, GREEDY)
    assert engine.step() == []


def test_c16_long_chats_in_parallel_wait_or_are_preempted_and_all_finish(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=64, block_size=4, max_num_seqs=4)
    answers = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
    for index in range(4):
        engine.add_request(str(index), engine.prepare(f"chat {index}" + "x" * 90, answers))
    deltas = run(engine, max_steps=1500)
    assert engine.stats().num_preemptions > 0
    for index in range(4):
        output = collect(deltas, str(index)).outputs[0]
        assert (output.finish_reason, len(output.token_ids)) == ("length", 150)


def test_c18_a_thousand_aborts_at_random_moments_leave_no_block_behind(make_engine: MakeEngine) -> None:
    choose = random.Random(0)
    engine = make_engine(num_blocks=32, max_num_seqs=8, max_num_batched_tokens=16)
    active: list[str] = []
    for index in range(1000):
        request = engine.prepare("x" * choose.randint(1, 40), GREEDY)
        if engine.num_vacancies:
            engine.add_request(str(index), request)
            active.append(str(index))
        engine.step()
        if len(active) > choose.randint(0, 12):
            engine.abort(active.pop(choose.randrange(len(active))))
            engine.check_integrity()
    engine.abort()
    engine.check_integrity()
    stats = engine.stats()
    assert (stats.num_free_blocks, stats.num_running, stats.num_waiting) == (32, 0, 0)


def test_c34_a_seeded_answer_is_the_same_alone_and_in_a_batch_of_32(make_engine: MakeEngine) -> None:
    params = SamplingParams(seed=9, max_tokens=20, top_p=0.9, ignore_eos=True)
    alone = make_engine()
    alone.add_request("r", alone.prepare("hello", params))
    engine = make_engine(num_blocks=256, max_num_seqs=32)
    for index in range(31):
        engine.add_request(str(index), engine.prepare(f"other {index}", SamplingParams(max_tokens=20)))
    engine.add_request("r", engine.prepare("hello", params))
    assert collect(run(engine, 200), "r").outputs == collect(run(alone, 200), "r").outputs
