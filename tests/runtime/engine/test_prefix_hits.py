"""The prefix cache through the whole engine: the same answers, to the last bit, for less work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.errors import InputError
from gristmill.runtime.executors.base import Executor, KVCacheConfig, KVDtype, SequenceStep
from gristmill.runtime.executors.native.engine_file import EngineFile
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.outputs import OutputCollector, OutputDelta, RequestOutput
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.settings import EngineSettings
from gristmill.runtime.tokenizer import Tokenizer
from tests.runtime.executors.native.tiny_engines import (
    KV_TYPES,
    compiled,
    open_executor,
    random_tokens,
    write_tiny,
)

MakeEngine = Callable[..., LLMEngine]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"), "shared key heads", "mixed")


@pytest.fixture(scope="module")
def tiny_native(tiny_folder: Path) -> EngineFile:
    return compiled(tiny_folder, tiny_folder.with_name("engine"))


def run(engine: LLMEngine) -> list[OutputDelta]:
    deltas: list[OutputDelta] = []
    while engine.has_work:
        deltas += engine.step()
        engine.check_integrity()
    return deltas


def collect(deltas: list[OutputDelta], request_id: str = "r", n: int = 1) -> RequestOutput:
    collector = OutputCollector(request_id, None, (), n, logprobs=True)
    for delta in deltas:
        if delta.request_id == request_id:
            collector.add(delta)
    return collector.result()


def ask(engine: LLMEngine, prompt: str | list[int], **settings: Any) -> RequestOutput:
    engine.add_request("r", engine.prepare(prompt, GREEDY, **settings))
    return collect(run(engine))


@pytest.mark.parametrize("kv", KV_TYPES)
def test_c35_native_answers_and_logprobs_are_the_same_to_the_last_bit(
    kv: KVDtype, tiny_native: EngineFile, byte_tokenizer: Tokenizer
) -> None:
    """Prompts that leave a shared beginning inside blocks and at their ends, in a cache that evicts."""

    @given(
        cuts=st.lists(st.integers(0, 90), min_size=2, max_size=12),
        seed=st.integers(0, 1000),
        max_num_seqs=st.integers(1, 4),
    )
    @settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def check(cuts: list[int], seed: int, max_num_seqs: int) -> None:
        beginning = random_tokens(seed, 90)
        prompts = [beginning[:cut] + random_tokens(seed + i, 1 + 5 * i % 23) for i, cut in enumerate(cuts, 1)]
        params = SamplingParams(seed=seed, max_tokens=20, ignore_eos=True, logprobs=3)
        answers = []
        for caching in (True, False):
            executor = open_executor(tiny_native, kv=kv, blocks=40, threads=2)
            chosen = EngineSettings(
                prefix_caching=caching, max_num_seqs=max_num_seqs, max_num_batched_tokens=64
            )
            engine = LLMEngine(executor, byte_tokenizer, chosen)
            for index, prompt in enumerate(prompts):
                engine.add_request(str(index), engine.prepare(prompt, params))
            deltas = run(engine)
            answers.append([collect(deltas, str(index)).outputs for index in range(len(prompts))])
            assert caching or engine.stats().prefix_hits == 0
            engine.close()
        assert answers[0] == answers[1]

    check()


@pytest.fixture(params=["native", "reference"])
def executor(
    request: pytest.FixtureRequest, tiny_folder: Path, tiny_native: EngineFile
) -> Iterator[Executor]:
    made: Executor
    if request.param == "native":
        made = open_executor(tiny_native, kv="float32", blocks=8, threads=1)
    else:
        made = ReferenceExecutor(open_checkpoint(tiny_folder), KVCacheConfig(8, 16, "float32"), "float32")
    yield made
    made.close()


def test_a_copied_block_holds_the_keys_and_values_of_its_source(executor: Executor) -> None:
    tokens = random_tokens(3, 40)
    expected = np.array(executor.execute([SequenceStep(tokens, 0, [5, 2, 7])]))
    executor.copy_blocks([(2, 0), (0, 3)])
    rows = executor.execute([SequenceStep(tokens[30:], 30, [5, 3, 1])])
    np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pair", [(8, 0), (0, 8), (-1, 0), (0, -1)])
def test_a_copy_outside_the_cache_is_refused(executor: Executor, pair: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="expected 0 to 7"):
        executor.copy_blocks([(1, 2), pair])


def test_the_extension_itself_refuses_a_copy_outside_the_cache(tiny_native: EngineFile) -> None:
    executor = open_executor(tiny_native, kv="float32", blocks=8, threads=1)
    for pair in ((8, 0), (0, 8), (-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="of a cache of 8"):
            executor._open.copy_block(*pair)
    executor.close()


def test_a_repeated_prompt_is_cached_up_to_its_last_token(make_engine: MakeEngine) -> None:
    engine = make_engine(block_size=4)
    first, second = ask(engine, "sixteen letters!"), ask(engine, "sixteen letters!")
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 15)
    assert first.outputs == second.outputs
    stats = engine.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (32, 15)
    assert stats.num_cached_blocks > 0


def test_a_prompt_that_leaves_another_inside_a_block_shares_the_tokens_before(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(block_size=8)
    ask(engine, "a system prompt, then one question")
    assert ask(engine, "a system prompt, then two questions").num_cached_tokens == len(
        "a system prompt, then "
    )


def test_a_conversation_finds_its_own_answers_in_the_cache(make_engine: MakeEngine) -> None:
    engine = make_engine(block_size=4)
    prompt = list(b"how are you?")
    answer = list(ask(engine, prompt).outputs[0].token_ids)
    following = ask(engine, [*prompt, *answer, *b" and now?"])
    assert following.num_cached_tokens >= len(prompt) + len(answer) - 4


def test_salts_do_not_share(make_engine: MakeEngine) -> None:
    engine = make_engine(block_size=4)
    ask(engine, "the same long prompt", cache_salt="ours")
    assert ask(engine, "the same long prompt", cache_salt="theirs").num_cached_tokens == 0
    assert ask(engine, "the same long prompt", cache_salt="ours").num_cached_tokens == 19


def test_a_scored_prompt_is_computed_whole_and_serves_others(make_engine: MakeEngine) -> None:
    engine = make_engine(block_size=4)
    scoring = SamplingParams(max_tokens=0, prompt_logprobs=1)
    results = []
    for _ in range(2):
        engine.add_request("r", engine.prepare("twenty letters here.", scoring))
        results.append(collect(run(engine)))
    assert results[0] == results[1]
    assert results[1].num_cached_tokens == 0
    assert ask(engine, "twenty letters here.").num_cached_tokens == 19


def test_several_answers_share_their_prompt(make_engine: MakeEngine) -> None:
    params = SamplingParams(n=4, seed=1, max_tokens=4, ignore_eos=True)
    shared, alone = make_engine(num_blocks=40), make_engine(num_blocks=200, prefix_caching=False)
    for engine in (shared, alone):
        engine.add_request("r", engine.prepare("x" * 101, params))
    assert collect(run(shared), n=4).outputs == collect(run(alone), n=4).outputs
    assert shared.stats().prefix_hits == 300
    assert shared.stats().num_preemptions == 0  # four prompts of 26 blocks would not fit


def test_without_prefix_caching_nothing_is_kept(make_engine: MakeEngine) -> None:
    engine = make_engine(prefix_caching=False)
    ask(engine, "the same prompt")
    assert ask(engine, "the same prompt").num_cached_tokens == 0
    assert engine.stats().num_cached_blocks == 0


def test_a_reset_forgets_and_leaves_running_answers_alone(
    make_engine: MakeEngine, greedy_tokens: Callable[..., list[int]]
) -> None:
    engine = make_engine(block_size=4)
    engine.add_request("r", engine.prepare(list(b"a running one"), GREEDY))
    deltas = engine.step()
    engine.reset_prefix_cache()
    result = collect(deltas + run(engine))
    assert list(result.outputs[0].token_ids) == greedy_tokens(b"a running one", 8)
    assert engine.stats().num_cached_blocks == 0
    assert ask(engine, list(b"a running one")).num_cached_tokens == 0


def test_a_preempted_request_finds_again_what_is_still_cached(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=64, max_num_seqs=1)
    engine.add_request("r", engine.prepare("x" * 100, GREEDY, priority=1))
    deltas = engine.step()
    engine.add_request("urgent", engine.prepare("y", GREEDY))
    deltas += run(engine)
    last = next(delta for delta in deltas if delta.request_id == "r" and delta.finish_reason)
    assert last.num_preemptions == 1
    assert last.num_recomputed <= 4


def test_every_step_that_reads_a_prompt_says_how_far_it_is(make_engine: MakeEngine) -> None:
    engine = make_engine(block_size=4, max_num_seqs=4, max_num_batched_tokens=16)
    ask(engine, "0123456789")
    engine.add_request("r", engine.prepare("0123456789" + "x" * 20, GREEDY))
    progress = [delta.progress for delta in run(engine) if delta.progress is not None]
    assert [(p.total, p.cached, p.computed) for p in progress] == [(30, 10, 26), (30, 10, 30)]


def test_a_failed_copy_ends_its_request_and_the_engine_lives_on(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(block_size=8)
    ask(engine, "hello world")

    def fail(pairs: object) -> None:
        raise RuntimeError("no copy today")

    with monkeypatch.context() as patch:
        patch.setattr(engine._executor, "copy_blocks", fail)
        engine.add_request("bad", engine.prepare("hello there", GREEDY))
        deltas = run(engine)
    with pytest.raises(RuntimeError, match="no copy today"):
        collect(deltas, "bad")
    assert ask(engine, "hello world").num_cached_tokens == 10
