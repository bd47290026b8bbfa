"""The golden proof: a right engine passes, and each kind of wrong one is told by how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.runtime.engine_folder import GoldenPrompt
from gristmill.runtime.errors import InputError, IntegrityError
from gristmill.runtime.executors.base import ExecutorInfo, KVCacheConfig, SequenceStep
from gristmill.runtime.golden import (
    COARSE_TOLERANCE,
    DEFAULT_TOLERANCE,
    compare_golden,
    golden_tolerance,
    record_golden,
    require_golden,
    short_golden,
)
from gristmill.runtime.model_plan import ModelPlan, NormPlan

VOCAB = 11
PLAN = ModelPlan("toy", VOCAB, 4, 64, "float32", "embed", (), NormPlan("norm", 4, 1e-6), None)
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9], [3, 3, 3, 3, 3], [10, 0, 10]]


def no_change(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return logits


@dataclass
class ToyExecutor:
    """Logits are a fixed function of all tokens so far, which are read back through the block table."""

    cache: KVCacheConfig = field(default_factory=lambda: KVCacheConfig(32, 4, "float32"))
    distort: Callable[[NDArray[np.float32]], NDArray[np.float32]] = no_change
    forgets_decodes: bool = False
    calls: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stored = np.full((self.cache.num_blocks, self.cache.block_size), -1)
        self.table = (
            np.random.default_rng(0).normal(size=(PLAN.max_positions, VOCAB, VOCAB)).astype(np.float32)
        )

    @property
    def plan(self) -> ModelPlan:
        return PLAN

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo("toy", "float32", "float32")

    def execute(self, batch: Sequence[SequenceStep]) -> NDArray[np.float32]:
        self.calls.append(len(batch))
        for entry in batch:
            if self.forgets_decodes and len(entry.token_ids) == 1:
                continue
            for position, token in enumerate(entry.token_ids, entry.start):
                block, slot = divmod(position, self.cache.block_size)
                self.stored[entry.block_table[block], slot] = token
        return self.distort(np.stack([self._logits(entry) for entry in batch]))

    def _logits(self, entry: SequenceStep) -> NDArray[np.float32]:
        length = entry.start + len(entry.token_ids)
        history = self.stored[list(entry.block_table)].reshape(-1)[:length]
        return np.asarray(self.table[np.arange(length), history].sum(axis=0), dtype=np.float32)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.stored[target] = self.stored[source]

    def close(self) -> None:
        pass


def golden_of(prompts: Sequence[Sequence[int]] = PROMPTS) -> tuple[GoldenPrompt, ...]:
    return record_golden(ToyExecutor(), prompts, positions=3, continuation=5)


def test_recorded_rows_are_the_logits_of_the_last_prompt_tokens() -> None:
    prompt = golden_of()[0]
    table = ToyExecutor().table
    assert prompt.logits.shape == (3, VOCAB)
    for row, length in zip(prompt.logits, (5, 6, 7), strict=True):
        np.testing.assert_allclose(row, table[np.arange(length), PROMPTS[0][:length]].sum(axis=0), rtol=1e-5)


def test_a_prompt_shorter_than_the_positions_gives_a_row_a_token() -> None:
    assert [len(prompt.logits) for prompt in golden_of()] == [3, 1, 3, 3]


def test_the_continuation_is_greedy() -> None:
    prompt = golden_of()[2]
    tokens = list(PROMPTS[2])
    table = ToyExecutor().table
    for token in prompt.continuation:
        assert token == table[np.arange(len(tokens)), tokens].sum(axis=0).argmax()
        tokens.append(token)
    assert len(prompt.continuation) == 5


def test_the_same_engine_agrees_exactly() -> None:
    report = require_golden(ToyExecutor(), golden_of(), tolerance=0.0)
    assert report.passed
    assert (report.kl_max, report.max_logprob_difference, report.top1_agreement) == (0.0, 0.0, 1.0)


def test_prompts_are_compared_in_mixed_batches_that_fit_the_cache() -> None:
    roomy, small = ToyExecutor(), ToyExecutor(KVCacheConfig(3, 4, "float32"))
    assert require_golden(roomy, golden_of(), 0.0) == require_golden(small, golden_of(), 0.0)
    assert (max(roomy.calls), max(small.calls)) == (4, 2)


def test_recording_does_not_depend_on_the_cache_size() -> None:
    small = record_golden(ToyExecutor(KVCacheConfig(3, 4, "float32")), PROMPTS, positions=3, continuation=5)
    for one, other in zip(golden_of(), small, strict=True):
        assert one.logits.tobytes() == other.logits.tobytes()
        assert one.continuation == other.continuation


def test_kl_is_that_of_the_recorded_against_the_produced_distribution() -> None:
    golden = [GoldenPrompt((1,), np.log(np.array([[0.5, 0.25, 0.25] + [1e-9] * 8], np.float32)), ())]
    produced = np.log(np.array([[0.25, 0.5, 0.25] + [1e-9] * 8], np.float32))
    report = compare_golden(ToyExecutor(distort=lambda _: produced), golden, tolerance=1.0)
    assert report.kl_max == pytest.approx(0.25 * np.log(2), rel=1e-5)
    assert report.max_logprob_difference == pytest.approx(np.log(2), rel=1e-5)
    assert report.top1_agreement == 0.0


def test_a_constant_added_to_all_logits_changes_nothing() -> None:
    report = compare_golden(ToyExecutor(distort=lambda logits: logits + 100), golden_of(), 1e-6)
    assert report.passed


@pytest.mark.parametrize(
    "executor",
    [
        ToyExecutor(distort=lambda logits: logits * np.float32(1.1)),
        ToyExecutor(distort=lambda logits: np.full_like(logits, np.nan)),
        ToyExecutor(distort=lambda logits: np.where(logits > 0, np.inf, logits)),
        ToyExecutor(distort=np.negative),
        ToyExecutor(distort=lambda logits: logits[::-1].copy()),
        ToyExecutor(forgets_decodes=True),
    ],
    ids=["scaled", "nan", "infinite", "negated", "rows swapped", "decode path broken"],
)
def test_a_wrong_engine_is_refused_by_how_much(executor: ToyExecutor) -> None:
    with pytest.raises(
        IntegrityError, match=r"engine toy .*prompt \d; found KL .* expected KL of at most 0.001"
    ):
        require_golden(executor, golden_of(), tolerance=0.001)


def test_the_worst_prompt_is_the_one_named() -> None:
    golden = list(golden_of())
    golden[2] = replace(golden[2], logits=golden[2].logits[:, ::-1].copy())
    with pytest.raises(IntegrityError, match="prompt 2"):
        require_golden(ToyExecutor(), golden, tolerance=0.001)


def test_no_golden_prompts_prove_nothing() -> None:
    with pytest.raises(InputError, match="golden prompts; found none"):
        compare_golden(ToyExecutor(), (), tolerance=1.0)


@pytest.mark.parametrize("prompt", [[], [1] * 61, [1] * 200])
def test_a_prompt_that_does_not_fit_is_refused(prompt: list[int]) -> None:
    with pytest.raises(InputError, match=r"golden prompt; found \d+ tokens and 5 to add"):
        golden_of([prompt])


def test_the_short_proof_is_one_prefill_and_one_decode_of_the_shortest_prompt() -> None:
    golden = golden_of([[1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7], [3, 3, 3, 3, 3]])
    short = short_golden(golden)
    assert short.token_ids == (4, 5, 6, 7)
    executor = ToyExecutor()
    assert require_golden(executor, (short,), 1e-6).passed
    assert len(executor.calls) == 2
    with pytest.raises(IntegrityError):
        require_golden(ToyExecutor(forgets_decodes=True), (short,), 1e-3)


@pytest.mark.parametrize(
    ("compute", "kv_cache", "expected"),
    [
        ("int8", "bfloat16", 0.1),
        ("int8", "float32", 0.1),
        ("int8", "int4", 0.4),
        ("int8", "fp8", COARSE_TOLERANCE),
        ("bfloat16", "bfloat16", DEFAULT_TOLERANCE),
    ],
)
def test_each_number_format_has_its_own_tolerance(compute: str, kv_cache: Any, expected: float) -> None:
    recorded = {("int8", "bfloat16"): 0.1, ("int8", "int4"): 0.4}
    assert golden_tolerance(recorded, ExecutorInfo("toy", compute, kv_cache)) == expected
