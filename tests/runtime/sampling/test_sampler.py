"""The sampler beside a slow, obvious twin, and what its random numbers may depend on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.runtime.errors import GristmillError, InternalError, RequestError
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.sampling.sampler import SampledToken, sample_rows
from gristmill.runtime.sampling.state import SamplerState, make_sampler_state

VOCAB = 24
PROMPT = (1, 2)
END = 0
ROUNDING = 1e-6

CASES = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.7),
    "hot": SamplingParams(temperature=1.5),
    "top-p": SamplingParams(temperature=0.7, top_p=0.95),
    "low top-p": SamplingParams(temperature=1.3, top_p=0.2),
    "high top-p": SamplingParams(top_p=0.9999),
    "tiny top-p": SamplingParams(top_p=1e-9),
    "top-k 1": SamplingParams(top_k=1),
    "top-k 5": SamplingParams(top_k=5),
    "top-k 50": SamplingParams(top_k=50),
    "top-k 900": SamplingParams(top_k=900),
    "all filters": SamplingParams(temperature=0.8, top_k=40, top_p=0.9, min_p=0.01),
    "min-p": SamplingParams(min_p=0.05),
    "min-p and top-p": SamplingParams(min_p=1e-4, top_p=0.9),
    "penalties": SamplingParams(
        top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.5, presence_penalty=-0.5
    ),
}

Floats = NDArray[np.float64]
Logits = NDArray[np.float32]


class Twin:
    """The sampler in plain NumPy and float64, a row at a time."""

    def __init__(self, params: SamplingParams, seed: int = 0, index: int = 0, prompt=PROMPT) -> None:
        self.params, self.seed, self.index = params, seed, index
        self.prompt = list(prompt)
        self.output: list[int] = []

    def uniform(self, which: int = 0) -> float:
        key = np.array([self.seed & (2**64 - 1), self.index], np.uint64)
        counter = np.array([len(self.prompt) + len(self.output), 0, 0, 0], np.uint64)
        return float((int(np.random.Philox(key=key, counter=counter).random_raw(4)[which]) >> 11) * 2.0**-53)

    def adjust(self, logits: Logits) -> Floats:
        row, params = logits.astype(np.float64), self.params
        counts = np.bincount(self.output, minlength=row.size)
        seen = np.isin(np.arange(row.size), self.prompt + self.output)
        if len(self.output) < params.min_tokens:
            row[END] = -np.inf
        for token_id, bias in params.logit_bias.items():
            row[token_id] += bias
        scaled = np.where(row > 0, row / params.repetition_penalty, row * params.repetition_penalty)
        row = np.where(seen, scaled, row)
        row -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
        return row.astype(np.float32).astype(np.float64)

    def candidates(self, logits: Logits) -> set[int]:
        """The tokens that a rounding of the weights may choose: nearly always one."""
        row = self.adjust(logits)
        if self.params.temperature == 0.0:
            return {int(row.argmax())}
        params, found = self.params, set[int]()
        shares = (params.top_p * (1 - ROUNDING), min(1.0, params.top_p * (1 + ROUNDING)))
        nuclei = [keep(row, replace(params, top_p=share)) for share in shares]
        filtered = params.min_p > 0.0 or 0 < params.top_k < row.size
        tries = 3 if 0.5 <= params.top_p < 1.0 and not filtered else 0
        for which in range(tries):  # tokens of all, until one is in the nucleus
            tokens = self.drawn(keep(row, replace(params, top_p=1.0)), which)
            found |= {token for token in tokens for ids, _ in nuclei if token in ids}
            if all(token in ids for token in tokens for ids, _ in nuclei):
                return found
        return found.union(*(self.drawn(nucleus, tries) for nucleus in nuclei))

    def drawn(self, kept: tuple[NDArray[np.intp], Floats], which: int) -> set[int]:
        """What one of a step's random numbers chooses, rounded up or down."""
        uniform = self.uniform(which)
        return {draw(*kept, uniform - ROUNDING), draw(*kept, uniform + ROUNDING)}


def keep(row: Floats, params: SamplingParams) -> tuple[NDArray[np.intp], Floats]:
    """The tokens that temperature, min-p, top-k and top-p leave, by id, with their weights."""
    with np.errstate(over="ignore"):
        scaled = (row - row.max()) / params.temperature
    ranked = np.argsort(-row, kind="stable")
    if params.min_p > 0.0:
        ranked = ranked[scaled[ranked] >= math.log(params.min_p)]
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    if params.top_p < 1.0:
        cumulative = np.cumsum(np.exp(scaled[ranked]))
        ranked = ranked[: int(np.searchsorted(cumulative, params.top_p * cumulative[-1])) + 1]
    kept = np.sort(ranked)
    return kept, np.exp(scaled[kept])


def draw(token_ids: NDArray[np.intp], weights: Floats, uniform: float) -> int:
    cumulative = np.cumsum(weights)
    place = int(np.searchsorted(cumulative, max(uniform, 0.0) * cumulative[-1], side="right"))
    return int(token_ids[min(place, int(np.flatnonzero(weights)[-1]))])


def make_state(
    params: SamplingParams, *, seed: int = 0, index: int = 0, prompt=PROMPT, vocab_size: int = VOCAB
) -> SamplerState:
    return make_sampler_state(
        params, seed=seed, index=index, prompt_token_ids=prompt, end_token_ids=(END,), vocab_size=vocab_size
    )


def make_logits(seed: int = 0, size: int = VOCAB, scale: float = 2.0) -> Logits:
    return np.random.default_rng(seed).normal(scale=scale, size=size).astype(np.float32)


def sample(logits: Logits, state: SamplerState) -> SampledToken:
    outcome = sample_rows(logits[None], [0], [state])[0]
    if isinstance(outcome, GristmillError):
        raise outcome
    return outcome


def sample_often(logits: Logits, params: SamplingParams, count: int, seed: int = 0) -> list[int]:
    """The tokens of one completion whose every step has the same logits."""
    states = [make_state(params, seed=seed, vocab_size=logits.size)] * count
    outcomes = sample_rows(logits[None], [0] * count, states)
    return [outcome.token_id for outcome in outcomes if isinstance(outcome, SampledToken)]


def check_against_twin(logits: Logits, params: SamplingParams, count: int, seed: int = 0) -> None:
    twin = Twin(params, seed)
    tokens = sample_often(logits, params, count, seed)
    assert len(tokens) == count
    for token_id in tokens:
        assert token_id in twin.candidates(logits)
        twin.output.append(token_id)


@settings(max_examples=150)
@given(
    # Multiples of 1/8 make many exact ties.
    logits=st.lists(st.integers(-40, 40).map(lambda value: value / 8), min_size=3, max_size=12),
    temperature=st.sampled_from([0.25, 1.0, 2.0]),
    top_k=st.integers(0, 6),
    top_p=st.sampled_from([0.05, 0.33, 0.77, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.03, 0.3, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_choices_equal_the_twins(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    check_against_twin(np.array(logits, np.float32), params, 12, seed)


@pytest.mark.parametrize("size", [64, 1000, 49_152])
@pytest.mark.parametrize("scale", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("case", CASES)
def test_choices_equal_the_twins_in_vocabularies_of_any_size(size: int, scale: float, case: str) -> None:
    check_against_twin(make_logits(size, size, scale), CASES[case], 3)


def test_a_nucleus_edge_among_equal_tokens_keeps_the_first() -> None:
    logits = np.zeros(5000, np.float32)
    tokens = sample_often(logits, SamplingParams(top_p=0.1), 4000)
    assert max(tokens) < 500
    assert min(tokens) < 20


@settings(max_examples=100)
@given(
    seed=st.integers(0, 1000),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=8),
    repetition=st.sampled_from([0.5, 1.0, 1.3]),
    presence=st.sampled_from([-1.0, 0.0, 0.7]),
    frequency=st.sampled_from([-0.5, 0.0, 0.4]),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_penalties_and_bias_equal_the_twins(
    seed: int,
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    temperature: float,
) -> None:
    params = SamplingParams(
        temperature=temperature,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        min_tokens=3,
        logit_bias={5: -4.0, 7: 2.5},
    )
    state, twin = make_state(params), Twin(params)
    for token_id in output:
        state.append(token_id)
        twin.output.append(token_id)
    assert sample(make_logits(seed), state).token_id in twin.candidates(make_logits(seed))


@settings(max_examples=100)
@given(seed=st.integers(-(2**63), 2**63 - 1), index=st.integers(0, 127), length=st.integers(1, 300))
def test_random_numbers_are_those_of_numpys_philox(seed: int, index: int, length: int) -> None:
    prompt = (1,) * length
    expected = Twin(SamplingParams(), seed, index, prompt).uniform()
    assert make_state(SamplingParams(), seed=seed, index=index, prompt=prompt).uniform() == expected


@settings(max_examples=40)
@given(order=st.permutations(range(8)), size=st.sampled_from([24, 500, 2000]))
def test_a_row_does_not_depend_on_its_batch(order: list[int], size: int) -> None:
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(logprobs=3),
        SamplingParams(top_k=5),
        SamplingParams(top_p=0.9, logprobs=0),
        SamplingParams(min_p=0.1),
        SamplingParams(repetition_penalty=1.5),
        SamplingParams(logit_bias={3: 5.0}),
        SamplingParams(top_p=0.5, top_k=9, temperature=2.0),
    ]
    logits = np.stack([make_logits(i, size) for i in range(8)])
    alone = [sample(logits[i], make_state(params[i], seed=i, vocab_size=size)) for i in range(8)]
    states = [make_state(params[i], seed=i, vocab_size=size) for i in order]
    assert sample_rows(logits, order, states) == [alone[i] for i in order]


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_a_row_that_is_not_finite_fails_alone(value: float) -> None:
    logits = np.stack([make_logits(i) for i in range(3)])
    logits[1, 11] = value
    params = SamplingParams(logprobs=2, top_p=0.9)
    outcomes = sample_rows(logits, [0, 1, 2], [make_state(params) for _ in range(3)])
    assert outcomes[0] == sample(logits[0], make_state(params))
    assert isinstance(outcomes[1], InternalError)
    assert "not finite" in str(outcomes[1])
    assert outcomes[2] == sample(logits[2], make_state(params))


def test_a_row_of_nothing_but_minus_infinity_is_not_finite() -> None:
    with pytest.raises(InternalError, match="not finite"):
        sample(np.full(VOCAB, -np.inf, np.float32), make_state(SamplingParams()))


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=1e300), SamplingParams(top_p=0.999)], ids=str
)
def test_tokens_of_minus_infinity_are_never_chosen(params: SamplingParams) -> None:
    logits = np.full(200, -np.inf, np.float32)
    logits[[7, 150]] = 1.0
    assert set(sample_often(logits, params, 200)) == {7, 150}


def test_greedy_takes_the_first_of_equal_tokens() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[5, 9]] = 3.0
    assert sample(logits, make_state(SamplingParams(temperature=0.0))).token_id == 5


def test_both_zeros_are_equal_tokens() -> None:
    logits = np.full(VOCAB, -1.0, np.float32)
    logits[[5, 9]] = [-0.0, 0.0]
    assert sample(logits, make_state(SamplingParams(temperature=0.0))).token_id == 5


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


@pytest.mark.parametrize("case", ["hot", "temperature", "top-p", "top-k 5", "min-p"])
def test_sampled_frequencies_follow_the_distribution(case: str) -> None:
    """Chi-squared over 20,000 draws; with at most 7 degrees of freedom, 24.3 is the 0.1 % point."""
    logits = make_logits(1, size=8)
    token_ids, weights = keep(logits.astype(np.float64), CASES[case])
    expected = 20_000 * weights / weights.sum()
    counts = np.bincount(sample_often(logits, CASES[case], 20_000, seed=1), minlength=8)
    assert counts.sum() == counts[token_ids].sum() == 20_000
    assert ((counts[token_ids] - expected) ** 2 / expected).sum() < 24.3


def test_large_vocabularies_follow_the_distribution() -> None:
    """The share of each quarter, within five standard errors."""
    logits = make_logits(2, size=1000)
    weights = np.exp(logits.astype(np.float64)).reshape(4, 250).sum(axis=1)
    quarters = np.array(sample_often(logits, SamplingParams(), 4000, seed=3)) // 250
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
    logits[END] = 9.0
    state = make_state(SamplingParams(temperature=0.0, min_tokens=2))
    assert [sample(logits, state).token_id for _ in range(3)] == [1, 1, 0]


def test_settings_that_forbid_every_token_are_an_error() -> None:
    state = make_sampler_state(
        SamplingParams(min_tokens=1),
        seed=0,
        index=0,
        prompt_token_ids=(1,),
        end_token_ids=range(VOCAB),
        vocab_size=VOCAB,
    )
    with pytest.raises(RequestError, match="no token to choose"):
        sample(make_logits(), state)


def test_a_row_without_a_token_is_not_recorded() -> None:
    state = make_state(SamplingParams(), seed=5)
    before = state.uniform()
    sample_rows(np.full((1, VOCAB), np.nan, np.float32), [0], [state])
    assert state.uniform() == before


def test_rows_and_states_must_fit_the_logits() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    state = make_state(SamplingParams())
    with pytest.raises(IndexError, match="no row 1"):
        sample_rows(logits, [1], [state])
    with pytest.raises(ValueError, match="vocabulary"):
        sample_rows(logits[:, :5], [0], [state])
    with pytest.raises(ValueError, match="as many rows as states"):
        sample_rows(logits, [0], [])


def test_a_prompt_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        make_state(SamplingParams(repetition_penalty=1.1), prompt=(VOCAB,))
