"""Rows of a step sampled by the engine's threads: the tokens of one thread, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.runtime.errors import GristmillError
from gristmill.runtime.executors.base import SequenceStep
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.sampling.sampler import RowSampler, SampledToken, sample_rows
from gristmill.runtime.sampling.state import SamplerState, make_sampler_state
from tests.runtime.executors.native.test_diagnostics import first_scale
from tests.runtime.executors.native.tiny_engines import VOCABULARY, OpenExecutor, TinyEngine, random_tokens

VOCAB = 5000
PARAMS = [
    SamplingParams(temperature=0.0, logprobs=2),
    SamplingParams(logprobs=0),
    SamplingParams(top_p=0.9),
    SamplingParams(top_k=7),
    SamplingParams(top_k=900, top_p=0.8),
    SamplingParams(min_p=0.02),
    SamplingParams(top_p=0.99, repetition_penalty=1.2, presence_penalty=0.5),
]
ROWS = 3 * len(PARAMS)


def make_states(vocab_size: int = VOCAB) -> list[SamplerState]:
    return [
        make_sampler_state(
            PARAMS[i % len(PARAMS)],
            seed=i,
            index=0,
            prompt_token_ids=(1, 2),
            end_token_ids=(0,),
            vocab_size=vocab_size,
        )
        for i in range(ROWS)
    ]


def tokens(
    sampler: RowSampler | None, logits: NDArray[np.float32]
) -> list[list[SampledToken | GristmillError]]:
    """Four steps."""
    states = make_states()
    return [sample_rows(logits, range(ROWS), states, sampler) for _ in range(4)]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("scale", [0.5, 4.0, 1e-39])  # of the last, nearly all are subnormal
def test_threads_choose_the_tokens_of_one_thread(
    tiny_engine: Callable[[str, str], TinyEngine], open_native: OpenExecutor, threads: int, scale: float
) -> None:
    logits = np.random.default_rng(3).normal(scale=scale, size=(ROWS, VOCAB)).astype(np.float32)
    executor = open_native(tiny_engine("shared key heads", "mixed").file, threads=threads)
    assert isinstance(executor, RowSampler)
    assert tokens(executor, logits) == tokens(None, logits)


def test_rows_of_one_completion_follow_each_other(
    tiny_engine: Callable[[str, str], TinyEngine], open_native: OpenExecutor
) -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    executor = open_native(tiny_engine("shared key heads", "mixed").file, threads=3)
    alone, shared = make_states()[1], make_states()[1]
    expected = sample_rows(logits, [0] * 40, [alone] * 40)
    assert sample_rows(logits, [0] * 40, [shared] * 40, executor) == expected


def test_a_row_that_is_not_finite_fails_alone_among_threads(
    tiny_engine: Callable[[str, str], TinyEngine], open_native: OpenExecutor
) -> None:
    logits = np.zeros((ROWS, VOCAB), np.float32)
    logits[4, 9] = np.nan
    executor = open_native(tiny_engine("shared key heads", "mixed").file, threads=2)
    outcomes = sample_rows(logits, range(ROWS), make_states(), executor)
    assert [i for i, outcome in enumerate(outcomes) if isinstance(outcome, GristmillError)] == [4]


PREFILL = SequenceStep(random_tokens(1, ROWS), 0, range(2), "all")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_steps_own_logits_give_the_tokens_of_a_copy(
    tiny_engine: Callable[[str, str], TinyEngine], open_native: OpenExecutor, threads: int
) -> None:
    """The maxima that the head writes are those that the sampler finds in logits from elsewhere."""
    executor = open_native(tiny_engine("shared key heads", "mixed").file, threads=threads)
    assert isinstance(executor, RowSampler)
    logits = executor.execute([PREFILL])
    own, copied = make_states(VOCABULARY), make_states(VOCABULARY)
    for _ in range(4):
        expected = sample_rows(logits.copy(), range(ROWS), copied)
        assert sample_rows(logits, range(ROWS), own, executor) == expected


def test_a_steps_own_logits_cannot_be_changed(
    tiny_engine: Callable[[str, str], TinyEngine], open_native: OpenExecutor
) -> None:
    logits = open_native(tiny_engine("shared key heads", "mixed").file).execute([PREFILL])
    with pytest.raises(ValueError, match="read-only"):
        logits[0, 0] = 1.0


def test_a_head_that_is_not_a_number_leaves_no_token(
    tiny_engine: Callable[[str, str], TinyEngine], open_native: OpenExecutor, tmp_path: Path
) -> None:
    engine = tiny_engine("shared key heads", "plain").file
    data = bytearray(engine.path.read_bytes())
    scale = first_scale(engine.head)
    data[scale : scale + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "weights.bin").write_bytes(data)
    executor = open_native(replace(engine, path=tmp_path / "weights.bin"))
    logits = executor.execute([PREFILL])
    assert np.isnan(logits).any(axis=1).all()
    outcomes = sample_rows(logits, range(ROWS), make_states(VOCABULARY), executor)
    assert all(isinstance(outcome, GristmillError) for outcome in outcomes)
