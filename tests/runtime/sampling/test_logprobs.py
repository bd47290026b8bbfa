"""Log probabilities beside float64 ones."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.runtime.errors import InternalError
from gristmill.runtime.sampling.logprobs import token_logprobs
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.sampling.sampler import SampledToken, sample_rows
from gristmill.runtime.sampling.state import make_sampler_state


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    row = logits.astype(np.float64)
    row -= row.max()
    return np.asarray(row - np.log(np.exp(row).sum()))


def make_logits(seed: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(scale=3.0, size=shape).astype(np.float32)


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 49_152])
@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_reports_equal_float64_ones(size: int, count: int) -> None:
    logits = make_logits(size, (3, size))
    token_ids = [0, size // 2, size - 1]
    for row, report in zip(logits, token_logprobs(logits, token_ids, count), strict=True):
        expected = log_softmax(row)
        assert report.logprob == pytest.approx(expected[report.token_id], abs=1e-5)
        ranked = np.argsort(-row, kind="stable")[:count]
        assert [token_id for token_id, _ in report.top] == ranked.tolist()
        assert [value for _, value in report.top] == pytest.approx(expected[ranked].tolist(), abs=1e-5)


def test_equal_logprobs_are_listed_by_token_id() -> None:
    logits = np.zeros((1, 6), np.float32)
    logits[0, 4] = 1.0
    assert [i for i, _ in token_logprobs(logits, [0], 4)[0].top] == [4, 0, 1, 2]


def test_the_report_of_a_choice_is_of_the_model_before_any_setting() -> None:
    logits = make_logits(5, (1, 24))
    best = int(logits.argmax())
    state = make_sampler_state(
        SamplingParams(temperature=0.0, logprobs=3, logit_bias={best: -100.0}),
        seed=0,
        index=0,
        prompt_token_ids=(1,),
        end_token_ids=(),
        vocab_size=24,
    )
    sampled = sample_rows(logits, [0], [state])[0]
    assert isinstance(sampled, SampledToken)
    assert sampled.token_id != best
    assert sampled.logprobs == token_logprobs(logits, [sampled.token_id], 3)[0]


def test_choices_without_logprobs_have_no_report() -> None:
    state = make_sampler_state(
        SamplingParams(), seed=0, index=0, prompt_token_ids=(1,), end_token_ids=(), vocab_size=24
    )
    sampled = sample_rows(make_logits(1, (1, 24)), [0], [state])[0]
    assert isinstance(sampled, SampledToken)
    assert sampled.logprobs is None


def test_logits_that_are_not_finite_are_an_error() -> None:
    logits = make_logits(2, (2, 24))
    logits[1, 3] = np.nan
    with pytest.raises(InternalError, match="not finite"):
        token_logprobs(logits, [0, 0], 1)


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(IndexError, match="no token 24"):
        token_logprobs(make_logits(3, (1, 24)), [24], 0)
