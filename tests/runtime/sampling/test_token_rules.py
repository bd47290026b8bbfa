"""Bad words and allowed tokens, beside a sampler that is given a row without what they forbid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.runtime.errors import GristmillError, InternalError, RequestError
from gristmill.runtime.kernels import _native
from gristmill.runtime.sampling.sampler import SampledToken, sample_rows

VOCAB = 24
END = 0
PLAIN: dict[str, Any] = {
    "seed": 5,
    "completion": 0,
    "vocab_size": VOCAB,
    "prompt_token_ids": (1, 2, 3),
    "end_token_ids": (END,),
    "logit_bias": (),
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "logprobs": -1,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "random": {},
    "filters": {"top_k": 5, "top_p": 0.9, "min_p": 0.01},
    "nucleus": {"top_p": 0.8},
    "bias": {"logit_bias": [(3, 4.0), (9, -2.0)], "min_tokens": 2},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
}

Logits = NDArray[np.float32]


def make_state(**changes: Any) -> _native.SamplerState:
    return _native.SamplerState(**(PLAIN | changes))


def make_logits(seed: int = 0) -> Logits:
    return np.random.default_rng(seed).normal(scale=2.0, size=VOCAB).astype(np.float32)


def sample(logits: Logits, state: _native.SamplerState) -> SampledToken:
    outcome = sample_rows(logits[None], [0], [state])[0]
    if isinstance(outcome, GristmillError):
        raise outcome
    return outcome


def without_forbidden(
    logits: Logits, output: list[int], bad_words: Sequence[Sequence[int]], allowed: Sequence[int] | None
) -> Logits:
    """The rules in plain Python: what must not follow `output` gets minus infinity."""
    forbidden = set() if allowed is None else set(range(VOCAB)) - set(allowed)
    for *start, last in bad_words:
        if output[len(output) - len(start) :] == start:
            forbidden.add(last)
    row = logits.copy()
    row[sorted(forbidden)] = -np.inf
    return row


@settings(max_examples=200)
@given(
    name=st.sampled_from(sorted(SETTINGS)),
    seed=st.integers(0, 1000),
    allowed=st.none() | st.lists(st.integers(0, VOCAB - 1), min_size=4, max_size=12),
    bad_words=st.lists(st.lists(st.integers(0, 3) | st.integers(0, VOCAB - 1), min_size=1, max_size=3)),
    output=st.lists(st.integers(0, 3), max_size=6),
)
def test_choices_equal_those_of_a_row_without_what_is_forbidden(
    name: str, seed: int, allowed: list[int] | None, bad_words: list[list[int]], output: list[int]
) -> None:
    state = make_state(**SETTINGS[name], bad_words=bad_words, allowed_token_ids=allowed)
    plain = make_state(**SETTINGS[name])
    for token_id in output:
        state.append(token_id)
        plain.append(token_id)
    logits = make_logits(seed)
    row = without_forbidden(logits, output, bad_words, allowed)
    least = 1 if name == "bias" and len(output) < 2 else 0  # the end token is withheld, too
    if np.isfinite(row[least:]).any():
        assert sample(logits, state) == sample(row, plain)
    else:
        with pytest.raises(RequestError, match="no token to choose"):
            sample(logits, state)


def test_a_bad_word_is_withheld_at_its_last_token() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[7, 8, 9]] = [3.0, 2.0, 1.0]
    state = make_state(temperature=0.0, bad_words=[[7, 7]])
    assert [sample(logits, state).token_id for _ in range(4)] == [7, 8, 7, 8]


def test_the_prompt_does_not_begin_a_bad_word() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[7] = 3.0
    state = make_state(temperature=0.0, prompt_token_ids=(7,), bad_words=[[7, 7]])
    assert [sample(logits, state).token_id for _ in range(2)] == [7, 0]


def test_end_tokens_are_chosen_only_if_allowed() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[END] = 9.0
    assert sample(logits, make_state(temperature=0.0, allowed_token_ids=[5, 4])).token_id == 4
    assert sample(logits, make_state(temperature=0.0, allowed_token_ids=[5, END])).token_id == END


def test_allowing_every_token_changes_nothing() -> None:
    logits = make_logits()
    allowed = make_state(top_p=0.9, allowed_token_ids=range(VOCAB))
    plain = make_state(top_p=0.9)
    assert [sample(logits, allowed) for _ in range(50)] == [sample(logits, plain) for _ in range(50)]


def test_log_probabilities_are_those_of_all_tokens() -> None:
    logits = make_logits()
    best = int(logits.argmax())
    report = sample(logits, make_state(logprobs=1, allowed_token_ids=[4])).logprobs
    assert report is not None
    assert report.top[0][0] == best
    assert report.logprob == pytest.approx(float(logits[4] - np.log(np.exp(logits).sum())), abs=1e-5)


@pytest.mark.parametrize(
    "rules",
    [
        {"allowed_token_ids": []},
        {"allowed_token_ids": [3], "bad_words": [[3]]},
        {"bad_words": [[i] for i in range(VOCAB)]},
    ],
)
def test_rules_that_forbid_every_token_are_an_error(rules: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="no token to choose"):
        sample(make_logits(), make_state(**rules))


def test_allowed_tokens_that_the_model_rules_out_are_an_error_of_the_request() -> None:
    logits = make_logits()
    logits[[4, 5]] = -np.inf
    with pytest.raises(RequestError, match="no token to choose"):
        sample(logits, make_state(allowed_token_ids=[4, 5]))
    with pytest.raises(InternalError, match="not finite"):
        sample(np.full(VOCAB, -np.inf, np.float32), make_state(allowed_token_ids=[4, 5]))


@pytest.mark.parametrize("logprobs", [-1, 2])
def test_what_is_not_finite_among_the_allowed_is_found(logprobs: int) -> None:
    logits = make_logits()
    logits[4] = np.nan
    state = make_state(allowed_token_ids=[3, 4], logprobs=logprobs)
    with pytest.raises(InternalError, match="not finite"):
        sample(logits, state)


def test_log_probabilities_need_a_row_that_is_finite() -> None:
    logits = make_logits()
    logits[9] = np.inf
    state = make_state(allowed_token_ids=[3, 4], logprobs=2)
    before = state.uniform()
    with pytest.raises(InternalError, match="not finite"):
        sample(logits, state)
    assert state.uniform() == before


@pytest.mark.parametrize("rules", [{"allowed_token_ids": [VOCAB]}, {"bad_words": [[1, -1]]}])
def test_rules_outside_the_vocabulary_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        make_state(**rules)


def test_a_bad_word_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        make_state(bad_words=[[]])
