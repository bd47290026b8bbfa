"""The engine over a model that shows every paging fault, beside a slow twin without cache or batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.errors import InputError, RequestError
from gristmill.runtime.outputs import OutputCollector, OutputDelta, RequestOutput
from gristmill.runtime.sampling.params import SamplingParams

MakeEngine = Callable[..., LLMEngine]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def run(engine: LLMEngine) -> list[OutputDelta]:
    """Step until nothing is left, checking the engine's books after every step."""
    deltas: list[OutputDelta] = []
    while engine.has_work:
        deltas += engine.step()
        engine.check_integrity()
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_blocks
    return deltas


def collect(deltas: Iterable[OutputDelta], request_id: str = "r", n: int = 1) -> RequestOutput:
    collector = OutputCollector(request_id, None, (), n, logprobs=True)
    for delta in deltas:
        if delta.request_id == request_id:
            collector.add(delta)
    assert collector.finished
    return collector.result()


def generate(engine: LLMEngine, prompt: str | list[int], params: SamplingParams = GREEDY) -> RequestOutput:
    engine.add_request("r", engine.prepare(prompt, params))
    return collect(run(engine), n=params.n)


def test_greedy_tokens_equal_the_slow_twin(
    make_engine: MakeEngine, greedy_tokens: Callable[..., list[int]]
) -> None:
    prompt = [5, 6, 7, 8, 9]
    assert list(generate(make_engine(), prompt).outputs[0].token_ids) == greedy_tokens(prompt, 12)


@pytest.mark.parametrize("seed", range(4))
def test_any_traffic_gives_each_request_its_own_answer(
    make_engine: MakeEngine, greedy_tokens: Callable[..., list[int]], seed: int
) -> None:
    """Many requests over a cache for a few, so that they wait, share steps and are preempted."""
    choose = random.Random(seed)
    engine = make_engine(num_blocks=16, block_size=4, max_num_seqs=5, max_num_batched_tokens=7)
    prompts = {str(i): [choose.randrange(256) for _ in range(choose.randint(1, 20))] for i in range(25)}
    waiting = list(prompts)
    deltas: list[OutputDelta] = []
    while waiting or engine.has_work:
        while waiting and choose.random() < 0.5:
            request_id = waiting.pop()
            engine.add_request(request_id, engine.prepare(prompts[request_id], GREEDY))
        deltas += engine.step()
        engine.check_integrity()
    assert engine.stats().num_preemptions > 0
    for request_id, prompt in prompts.items():
        assert list(collect(deltas, request_id).outputs[0].token_ids) == greedy_tokens(prompt, 12)


def test_seeded_samples_do_not_depend_on_the_batch(make_engine: MakeEngine) -> None:
    params = SamplingParams(seed=3, max_tokens=10, top_p=0.9)
    alone = generate(make_engine(), "hello", params).outputs[0].token_ids
    engine = make_engine(num_blocks=12)
    for index in range(6):
        engine.add_request(str(index), engine.prepare(f"other {index}", SamplingParams(max_tokens=10)))
    engine.add_request("r", engine.prepare("hello", params))
    assert collect(run(engine)).outputs[0].token_ids == alone


def test_samples_without_a_seed_differ(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = SamplingParams(max_tokens=16)
    assert generate(engine, "hello", params).outputs[0] != generate(engine, "hello", params).outputs[0]


def test_several_answers_differ_and_each_is_whole(make_engine: MakeEngine) -> None:
    outputs = generate(
        make_engine(), "hello", SamplingParams(n=3, seed=1, max_tokens=8, ignore_eos=True)
    ).outputs
    assert [output.index for output in outputs] == [0, 1, 2]
    assert len({output.token_ids for output in outputs}) == 3
    assert [len(output.token_ids) for output in outputs] == [8, 8, 8]


def test_the_end_token_stops_and_is_not_shown(make_engine: MakeEngine) -> None:
    output = generate(make_engine("parrot"), "Hi!\n").outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("Hi!", "stop", None)
    assert output.token_ids == (*b"Hi!", 256)


def test_ignore_eos_goes_on_to_max_tokens(make_engine: MakeEngine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    output = generate(make_engine("parrot"), "Hi!\n", params).outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (6, "length")


def test_a_stop_token_is_named_as_the_reason(make_engine: MakeEngine) -> None:
    params = SamplingParams(temperature=0.0, stop_token_ids=(ord("!"),))
    output = generate(make_engine("parrot"), "Hi!you\n", params).outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("Hi", "stop", ord("!"))


def test_a_stop_string_is_cut_off_and_named(make_engine: MakeEngine) -> None:
    params = SamplingParams(temperature=0.0, stop=("cd",), max_tokens=20)
    engine = make_engine("parrot")
    engine.add_request("r", engine.prepare("abcdef\n", params))
    deltas = run(engine)
    assert [delta.text for delta in deltas] == ["a", "b", "", ""]
    output = collect(deltas).outputs[0]
    assert (output.text, output.stop_reason, output.token_ids) == ("ab", "cd", tuple(b"abcd"))


def test_a_stop_string_is_kept_when_asked_for(make_engine: MakeEngine) -> None:
    params = SamplingParams(temperature=0.0, stop=("cd",), include_stop_str_in_output=True)
    assert generate(make_engine("parrot"), "abcdef\n", params).outputs[0].text == "abcd"


def test_min_tokens_passes_over_early_stops(make_engine: MakeEngine) -> None:
    params = SamplingParams(temperature=0.0, stop=("a",), min_tokens=4, max_tokens=20)
    output = generate(make_engine("parrot"), "abcabc\n", params).outputs[0]
    assert output.text == "abc"


def test_characters_split_over_tokens_are_shown_whole(make_engine: MakeEngine) -> None:
    engine = make_engine("parrot")
    engine.add_request("r", engine.prepare("a€🙂\n", SamplingParams(temperature=0.0, max_tokens=30)))
    texts = [delta.text for delta in run(engine) if delta.text]
    assert texts == ["a", "€", "🙂"]


def test_logprobs_of_the_prompt_cover_every_token_but_the_first(make_engine: MakeEngine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2)
    whole = generate(make_engine(max_scored_tokens=64), "hello world", params).prompt_logprobs
    pieces = generate(make_engine(max_scored_tokens=2), "hello world", params).prompt_logprobs
    assert whole is not None
    assert whole[0] is None
    assert [entry.token_id for entry in whole[1:] if entry is not None] == list(b"ello world")
    assert pieces == whole


def test_a_scored_prompt_shares_its_steps_with_others(
    make_engine: MakeEngine, greedy_tokens: Callable[..., list[int]]
) -> None:
    """Rows of three kinds in one step: one for a decode, many for the scored prompt, one for a prompt."""
    scoring = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    expected = generate(make_engine(), "hello world", scoring).prompt_logprobs
    engine = make_engine()
    engine.add_request("before", engine.prepare("x", GREEDY))
    deltas = engine.step()
    engine.add_request("r", engine.prepare("hello world", scoring))
    engine.add_request("after", engine.prepare("yz", GREEDY))
    deltas += run(engine)
    assert collect(deltas).prompt_logprobs == expected
    for request_id, prompt in (("before", b"x"), ("after", b"yz")):
        assert list(collect(deltas, request_id).outputs[0].token_ids) == greedy_tokens(list(prompt), 12)


def test_text_held_for_a_stop_string_is_shown_when_the_answer_ends_otherwise(make_engine: MakeEngine) -> None:
    for max_tokens, text, reason in ((4, "abcd", "length"), (20, "abcd", "stop")):
        params = SamplingParams(temperature=0.0, stop=("cdX",), max_tokens=max_tokens)
        output = generate(make_engine("parrot"), "abcd\n", params).outputs[0]
        assert (output.text, output.finish_reason) == (text, reason)


def test_scoring_alone_generates_nothing(make_engine: MakeEngine) -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    result = generate(make_engine(), "hello", params)
    assert result.outputs[0].token_ids == ()
    assert result.outputs[0].finish_reason == "length"
    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs) == 5


def test_prompt_logprobs_survive_a_preemption(make_engine: MakeEngine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    expected = generate(make_engine(), "x" * 20, params).prompt_logprobs
    engine = make_engine(
        num_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, max_scored_tokens=1
    )
    engine.add_request("old", engine.prepare("y", SamplingParams(max_tokens=30, ignore_eos=True)))
    engine.add_request("r", engine.prepare("x" * 20, params))
    deltas = run(engine)
    assert engine.stats().num_preemptions > 0
    assert collect(deltas).prompt_logprobs == expected


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abort_ends_the_request_and_frees_its_blocks(make_engine: MakeEngine, steps: int) -> None:
    engine = make_engine(max_num_batched_tokens=16, max_num_seqs=2)
    engine.add_request("r", engine.prepare("x" * 20, SamplingParams(n=2, max_tokens=50, ignore_eos=True)))
    deltas = [delta for _ in range(steps) for delta in engine.step()]
    engine.abort("r")
    assert engine.stats().num_free_blocks == 64
    reasons = [output.finish_reason for output in collect(deltas + run(engine), n=2).outputs]
    assert reasons == ["abort", "abort"]


def test_aborting_a_request_that_has_ended_is_no_error(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.abort("unknown")
    assert engine.step() == []


def test_a_failed_step_ends_its_requests_and_the_engine_lives_on(make_engine: MakeEngine) -> None:
    engine = make_engine("parrot", fail_on=ord("#"))
    engine.add_request("bad", engine.prepare("#\n", GREEDY))
    deltas = run(engine)
    with pytest.raises(RuntimeError, match="on fire"):
        collect(deltas, "bad")
    assert generate(engine, "fine\n").outputs[0].text == "fine"


def test_a_request_without_a_choice_fails_alone(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = SamplingParams(min_tokens=1, stop_token_ids=tuple(range(260)))
    engine.add_request("bad", engine.prepare("x", params))
    engine.add_request("r", engine.prepare("hello", GREEDY))
    deltas = run(engine)
    assert collect(deltas).outputs[0].finish_reason == "length"
    with pytest.raises(RequestError, match="no token to choose"):
        collect(deltas, "bad")


def test_max_tokens_none_uses_the_rest_of_the_context(make_engine: MakeEngine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    assert len(generate(make_engine(max_model_len=30), "hello", params).outputs[0].token_ids) == 25


@pytest.mark.parametrize(
    ("prompt", "params", "field", "code"),
    [
        ("", GREEDY, "prompt", "invalid_value"),
        ([], GREEDY, "prompt", "invalid_value"),
        ([260], GREEDY, "prompt", "invalid_value"),
        ([-1], GREEDY, "prompt", "invalid_value"),
        ([True], GREEDY, "prompt", "invalid_value"),
        ("x" * 256, GREEDY, "prompt", "context_length_exceeded"),
        ("x" * 250, GREEDY, "max_tokens", "context_length_exceeded"),
        ("x", SamplingParams(logit_bias={260: 1.0}), "logit_bias", "invalid_value"),
        ("x", SamplingParams(n=9), "n", "invalid_value"),
        ("x", SamplingParams(max_tokens=None, min_tokens=256), "min_tokens", "invalid_value"),
    ],
)
def test_a_request_that_can_not_be_served_is_refused_before_it_queues(
    make_engine: MakeEngine, prompt: str | list[int], params: SamplingParams, field: str, code: str
) -> None:
    engine = make_engine(max_num_seqs=4, max_waiting=4)
    with pytest.raises(RequestError) as caught:
        engine.prepare(prompt, params)
    assert (caught.value.field, caught.value.code) == (field, code)


def test_all_answers_of_a_request_queue_or_none(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=2, max_waiting=2)
    engine.add_request("a", engine.prepare("x", SamplingParams(n=2)))
    with pytest.raises(RequestError, match="queue is full"):
        engine.add_request("b", engine.prepare("x", SamplingParams(n=3)))
    assert engine.num_vacancies == 2


def test_a_context_larger_than_the_cache_is_refused(make_engine: MakeEngine) -> None:
    with pytest.raises(InputError, match="at most 256"):
        make_engine(max_model_len=257)


@pytest.mark.parametrize(
    ("asked", "max_tokens", "kept"),
    [(4, 5, "ters"), (40, 5, "eight letters"), (-1, 5, "rs"), (-1, None, "etters")],
)
def test_a_prompt_is_cut_to_its_last_tokens_when_asked(
    make_engine: MakeEngine, asked: int, max_tokens: int | None, kept: str
) -> None:
    engine = make_engine(max_model_len=7 if asked == -1 else 40)
    request = engine.prepare(
        "eight letters", SamplingParams(max_tokens=max_tokens), truncate_prompt_tokens=asked
    )
    assert request.prompt == kept
    assert bytes(request.prompt_token_ids).decode() == kept


@pytest.mark.parametrize("asked", [0, -2, 257])
def test_a_prompt_can_not_be_cut_to_a_length_that_means_nothing(make_engine: MakeEngine, asked: int) -> None:
    with pytest.raises(RequestError, match="expected -1, or 1 to 256") as caught:
        make_engine().prepare("x", GREEDY, truncate_prompt_tokens=asked)
    assert caught.value.field == "truncate_prompt_tokens"


def test_priority_and_salt_reach_the_scheduler(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=1)
    engine.add_request("later", engine.prepare("x", GREEDY, priority=2))
    engine.add_request("sooner", engine.prepare("x", GREEDY, priority=1, cache_salt="ours"))
    ended = [delta.request_id for delta in run(engine) if delta.finish_reason]
    assert ended == ["sooner", "later"]


def test_a_queue_full_of_tokens_has_no_room(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=1, max_waiting_tokens=10)
    request = engine.prepare("x" * 8, GREEDY)
    assert engine.has_room(request)
    engine.add_request("a", request)
    assert engine.stats().num_waiting_tokens == 8
    assert not engine.has_room(request)
    with pytest.raises(RequestError, match="waiting queue is full"):
        engine.add_request("b", request)
    engine.step()
    assert engine.has_room(request)
    assert engine.retry_after() > 0
