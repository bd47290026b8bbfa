"""Cases from the field on scheduling and memory; ids as in the list of cases."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.errors import RequestError
from gristmill.runtime.executors.base import SequenceStep
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


def test_c07_a_long_prompt_does_not_stretch_the_gaps_of_a_running_answer(
    make_engine: MakeEngine, work_clock: Any
) -> None:
    """Four prompts of 3,900 tokens, whose attention comes to cost ten times their tokens."""
    engine = make_engine(num_blocks=5000, work_clock=work_clock, itl_target_ms=50.0)
    long = SamplingParams(temperature=0.0, max_tokens=2)
    engine.add_request("warm-up", engine.prepare(list(b"a" * 600), long))
    run(engine, 20)
    engine.add_request("victim", engine.prepare("x", SamplingParams(max_tokens=4000, ignore_eos=True)))
    engine.step()
    for index in range(4):
        engine.add_request(str(index), engine.prepare(f"{index}" + "y" * 3900, long))
    deltas: list[OutputDelta] = []
    work_clock.steps.clear()
    while {delta.request_id for delta in deltas if delta.finish_reason} != set("0123"):
        step = engine.step()
        assert "victim" in {delta.request_id for delta in step}
        deltas += step
    assert max(work_clock.steps) < 2 * 0.050
    assert sum(work_clock.steps) / len(work_clock.steps) > 0.6 * 0.050  # and the time is used


def test_c09_a_short_prompt_overtakes_the_long_ones_that_came_first(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=5000, max_num_batched_tokens=64)
    for index in range(6):
        engine.add_request(f"long {index}", engine.prepare(f"{index}" + "y" * 2000, GREEDY))
    engine.step()
    engine.add_request("short", engine.prepare("hello", GREEDY))
    first_steps = [engine.step() for _ in range(3)]
    assert any(delta.request_id == "short" and delta.token_ids for step in first_steps for delta in step)


def test_c09_prompts_of_one_length_are_read_at_one_speed(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=5000, max_num_batched_tokens=64)
    for index in range(3):
        engine.add_request(str(index), engine.prepare(f"{index}" + "y" * 299, GREEDY))
    done: dict[str, int] = {}
    for step in range(20):
        done |= {delta.request_id: step for delta in engine.step() if delta.token_ids}
        if len(done) == 3:
            break
    assert max(done.values()) - min(done.values()) <= 1


def test_c10_a_nearly_full_cache_and_a_long_request_never_stand_still(make_engine: MakeEngine) -> None:
    """The long request is longer than a step's budget and grows until the cache is full, twice over."""
    engine = make_engine(num_blocks=20, block_size=4, max_num_batched_tokens=8, max_num_seqs=4)
    engine.add_request("long", engine.prepare("x" * 30, SamplingParams(max_tokens=50, ignore_eos=True)))
    for index in range(6):
        engine.add_request(str(index), engine.prepare("y" * 20, GREEDY))
    run(engine, max_steps=400)
    assert engine.stats().num_preemptions <= 12


def test_c12_a_more_urgent_request_takes_the_slot_of_a_less_urgent_one(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=256, max_num_seqs=4)
    answers = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    for index in range(4):
        engine.add_request(str(index), engine.prepare(f"bulk {index}", answers, priority=5))
    engine.step()
    engine.add_request("urgent", engine.prepare("now", GREEDY, priority=1))
    assert any(delta.request_id == "urgent" and delta.token_ids for delta in engine.step())
    assert engine.stats().num_preemptions == 1
    deltas = run(engine, 400)
    assert [collect(deltas, str(i)).outputs[0].finish_reason for i in range(4)] == ["length"] * 4


def test_c12_equals_do_not_take_slots_from_each_other(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=256, max_num_seqs=2)
    for index in range(8):
        engine.add_request(str(index), engine.prepare(f"bulk {index}", GREEDY, priority=5))
    run(engine, 200)
    assert engine.stats().num_preemptions == 0


def test_c13_one_urgent_request_among_thirty_is_answered_first(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=512, max_num_seqs=4)
    answers = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    for index in range(30):
        engine.add_request(str(index), engine.prepare(f"bulk {index}" + "x" * 20, answers))
    deltas = engine.step()
    engine.add_request("urgent", engine.prepare("now", GREEDY, priority=-1))
    deltas += run(engine, 1000)
    ended = [delta.request_id for delta in deltas if delta.finish_reason]
    assert ended.index("urgent") == 0
    assert len(ended) == 31


def test_c11_a_request_that_needs_more_cache_than_exists_is_refused_with_both_numbers(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(num_blocks=8, block_size=4)
    with pytest.raises(RequestError, match="found 40 prompt tokens; expected a context of 32"):
        engine.prepare("x" * 40, GREEDY)
    assert engine.step() == []


def test_c15_a_preempted_answer_says_how_often_and_how_much_was_computed_again(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(num_blocks=20, block_size=4, prefix_caching=False, max_num_seqs=2)
    answers = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    engine.add_request("old", engine.prepare("x" * 20, answers))
    engine.add_request("new", engine.prepare("y" * 20, answers))
    last = {delta.request_id: delta for delta in run(engine, 400) if delta.finish_reason}
    assert (last["old"].num_preemptions, last["old"].num_recomputed) == (0, 0)
    assert last["new"].num_preemptions >= 1
    assert last["new"].num_recomputed >= 20
    stats = engine.stats()
    assert stats.num_preemptions == last["new"].num_preemptions
    assert stats.num_recomputed == last["new"].num_recomputed


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


@pytest.mark.parametrize("seed", range(3))
def test_c35_answers_are_the_same_with_the_prefix_cache_on_and_off(
    make_engine: MakeEngine, seed: int
) -> None:
    """Large batches of prompts that begin alike, over a cache so small that they evict each other."""
    choose = random.Random(seed)
    beginnings = ["a system prompt " * 3, "another one " * 4]
    prompts = [choose.choice(beginnings)[: choose.randint(0, 50)] + f"{choose.random()}" for _ in range(60)]
    answers = {}
    for caching in (True, False):
        engine = make_engine(num_blocks=80, max_num_seqs=12, prefix_caching=caching)
        for index, prompt in enumerate(prompts):
            engine.add_request(str(index), engine.prepare(prompt, GREEDY))
        deltas = run(engine, 2000)
        answers[caching] = [collect(deltas, str(index)).outputs for index in range(len(prompts))]
        assert (engine.stats().prefix_hits > 500) == caching
    assert answers[True] == answers[False]


def test_c35_prompts_that_arrive_together_compute_what_they_share_once(make_engine: MakeEngine) -> None:
    computed = 0

    def count(batch: Sequence[SequenceStep]) -> None:
        nonlocal computed
        computed += sum(len(step.token_ids) for step in batch)

    engine = make_engine(num_blocks=4096, block_size=16, max_num_seqs=64, on_step=count)
    system = "You are a helpful assistant. " * 50
    answer = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    for index in range(64):
        engine.add_request(str(index), engine.prepare(f"{system}{index:02}", answer))
    run(engine, 100)
    assert computed < len(system) + 64 * 16
