"""The sampler beside a slow, obvious twin, and what its random numbers may depend on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.runtime.errors import InternalError, RequestError
from gristmill.runtime.sampling.logprobs import token_logprobs
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.sampling.sampler import filter_tokens, sample
from gristmill.runtime.sampling.state import SamplerState

VOCAB = 24


def make_state(
    params: SamplingParams, *, seed: int = 0, index: int = 0, prompt: tuple[int, ...] = (1, 2)
) -> SamplerState:
    return SamplerState(
        params,
        seed=seed,
        index=index,
        prompt_token_ids=prompt,
        end_token_ids=(0,),
        vocab_size=VOCAB,
    )


def make_logits(seed: int = 0, size: int = VOCAB) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(scale=2.0, size=size).astype(np.float32)


def filter_slowly(logits: list[float], params: SamplingParams) -> dict[int, float]:
    """Token id -> probability, by sorting and summing in plain Python."""
    best = max(logits)
    weights = {i: math.exp((value - best) / params.temperature) for i, value in enumerate(logits)}
    weights = {i: weight for i, weight in weights.items() if weight >= params.min_p}
    ranked = sorted(weights, key=lambda i: (-weights[i], i))
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    total = math.fsum(weights[i] for i in ranked)
    kept: list[int] = []
    for i in ranked:
        if params.top_p < 1.0 and math.fsum(weights[j] for j in kept) >= params.top_p * total:
            break
        kept.append(i)
    total = math.fsum(weights[i] for i in kept)
    return {i: weights[i] / total for i in kept}


def adjust_slowly(
    logits: list[float], params: SamplingParams, prompt: list[int], output: list[int]
) -> list[float]:
    adjusted = []
    for token_id, value in enumerate(logits):
        if len(output) < params.min_tokens and token_id == 0:
            value = -math.inf
        value += params.logit_bias.get(token_id, 0.0)
        if token_id in prompt or token_id in output:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * output.count(token_id)
        value -= params.presence_penalty * (token_id in output)
        adjusted.append(value)
    return adjusted


@settings(deadline=None, max_examples=200)
@given(
    # Multiples of 1/8 make many exact ties.
    logits=st.lists(st.integers(-40, 40).map(lambda value: value / 8), min_size=1, max_size=12),
    temperature=st.sampled_from([0.25, 1.0, 2.0]),
    top_k=st.integers(0, 6),
    top_p=st.sampled_from([0.05, 0.33, 0.77, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.03, 0.3, 1.0]),
)
def test_filters_equal_the_slow_twin(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    token_ids, weights = filter_tokens(np.array(logits, np.float64), params)
    expected = filter_slowly(logits, params)
    assert token_ids.tolist() == sorted(expected)
    np.testing.assert_allclose(weights / weights.sum(), [expected[i] for i in sorted(expected)], rtol=1e-12)


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 1000),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=8),
    repetition=st.sampled_from([0.5, 1.0, 1.3]),
    presence=st.sampled_from([-1.0, 0.0, 0.7]),
    frequency=st.sampled_from([-0.5, 0.0, 0.4]),
)
def test_penalties_and_bias_equal_the_slow_twin(
    seed: int, output: list[int], repetition: float, presence: float, frequency: float
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        min_tokens=3,
        logit_bias={5: -4.0, 7: 2.5},
    )
    state = make_state(params)
    for token_id in output:
        state.append(token_id)
    row = make_logits(seed).astype(np.float64)
    expected = adjust_slowly(row.tolist(), params, [1, 2], output)
    state.adjust(row)
    np.testing.assert_allclose(row, expected, rtol=1e-12)


def test_greedy_takes_the_first_of_equal_tokens() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[5, 9]] = 3.0
    assert sample(logits, make_state(SamplingParams(temperature=0.0))).token_id == 5


def test_top_k_of_one_is_greedy() -> None:
    logits = make_logits(3)
    assert sample(logits, make_state(SamplingParams(top_k=1))).token_id == int(logits.argmax())


@pytest.mark.parametrize("temperature", [1e-300, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = make_logits(4)
    state = make_state(SamplingParams(temperature=temperature))
    assert sample(logits, state).token_id == int(logits.argmax())


def test_a_seed_gives_the_same_tokens_whatever_else_is_sampled() -> None:
    rows = [make_logits(i) for i in range(20)]
    params = SamplingParams(seed=7, top_p=0.9)
    alone, beside, other = make_state(params, seed=7), make_state(params, seed=7), make_state(params, seed=8)
    first = [sample(row, alone).token_id for row in rows]
    second = []
    for row in rows:
        sample(row, other)
        second.append(sample(row, beside).token_id)
    assert first == second


def test_completions_of_one_request_differ() -> None:
    rows = [make_logits(i) for i in range(20)]
    states = [make_state(SamplingParams(n=2), seed=7, index=index) for index in range(2)]
    first, second = ([sample(row, state).token_id for row in rows] for state in states)
    assert first != second


def test_a_token_depends_on_its_position_and_not_on_the_steps_before() -> None:
    late = make_state(SamplingParams(), seed=7, prompt=(1, 2, 3, 4))
    stepped = make_state(SamplingParams(), seed=7, prompt=(1, 2))
    for token_id in (3, 4):
        stepped.append(token_id)
    assert late.uniform() == stepped.uniform()


def test_sampled_frequencies_follow_the_distribution() -> None:
    """Chi-squared over 20,000 draws; with 7 degrees of freedom, 24.3 is the 0.1 % point."""
    logits = make_logits(1, size=8)
    token_ids, weights = filter_tokens(logits.astype(np.float64), SamplingParams(temperature=1.5))
    expected = 20_000 * weights / weights.sum()
    state = SamplerState(
        SamplingParams(temperature=1.5),
        seed=1,
        index=0,
        prompt_token_ids=(1,),
        end_token_ids=(),
        vocab_size=8,
    )
    counts = np.bincount([sample(logits, state).token_id for _ in range(20_000)], minlength=8)
    assert token_ids.size == 8
    assert ((counts - expected) ** 2 / expected).sum() < 24.3


def test_large_vocabularies_follow_the_distribution() -> None:
    """More tokens than one block of the draw: the share of each quarter, within five standard errors."""
    logits = make_logits(2, size=1000)
    weights = np.exp(logits.astype(np.float64)).reshape(4, 250).sum(axis=1)
    state = SamplerState(
        SamplingParams(), seed=3, index=0, prompt_token_ids=(1,), end_token_ids=(), vocab_size=1000
    )
    quarters = [sample(logits, state).token_id // 250 for _ in range(4000)]
    share = np.bincount(quarters, minlength=4) / 4000
    expected = weights / weights.sum()
    assert np.all(np.abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / 4000))


def test_uniform_numbers_are_uniform() -> None:
    """Mean and variance over seeds and positions, within five standard errors."""
    values = []
    for seed in range(40):
        state = make_state(SamplingParams(), seed=seed)
        for _ in range(250):
            values.append(state.uniform())
            state.append(0)
    assert len(set(values)) == len(values)
    assert abs(np.mean(values) - 0.5) < 5 * math.sqrt(1 / 12 / len(values))
    assert abs(np.var(values) - 1 / 12) < 5 * math.sqrt(1 / 180 / len(values))


def test_end_tokens_wait_for_min_tokens() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[0] = 9.0
    state = make_state(SamplingParams(temperature=0.0, min_tokens=2))
    assert [sample(logits, state).token_id for _ in range(3)] == [1, 1, 0]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_error(value: float) -> None:
    logits = make_logits()
    logits[11] = value
    with pytest.raises(InternalError, match="not finite"):
        sample(logits, make_state(SamplingParams()))


def test_settings_that_forbid_every_token_are_an_error() -> None:
    state = SamplerState(
        SamplingParams(min_tokens=1),
        seed=0,
        index=0,
        prompt_token_ids=(1,),
        end_token_ids=range(VOCAB),
        vocab_size=VOCAB,
    )
    with pytest.raises(RequestError, match="no token to choose"):
        sample(make_logits(), state)


def test_logprobs_are_those_of_the_model_before_any_setting() -> None:
    logits = make_logits(5)
    best = int(logits.argmax())
    state = make_state(SamplingParams(temperature=0.0, logprobs=3, logit_bias={best: -100.0}))
    sampled = sample(logits, state)
    probabilities = np.exp(logits.astype(np.float64))
    expected = np.log(probabilities / probabilities.sum())
    assert sampled.logprobs is not None
    assert sampled.token_id != best
    assert sampled.logprobs.logprob == pytest.approx(expected[sampled.token_id])
    ranked = sorted(range(VOCAB), key=lambda i: -expected[i])[:3]
    assert [token_id for token_id, _ in sampled.logprobs.top] == ranked


def test_equal_logprobs_are_listed_by_token_id() -> None:
    logits = np.zeros(6, np.float32)
    logits[4] = 1.0
    assert [i for i, _ in token_logprobs(logits, 0, 4).top] == [4, 0, 1, 2]
