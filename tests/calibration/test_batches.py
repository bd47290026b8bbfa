"""Batches: every token once, padding on the right, the order of the samples of no effect."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.calibration.batches import Batch, make_batches, sampling_interval
from gristmill.runtime.errors import PromptError

SEQUENCES = st.lists(st.lists(st.integers(0, 9), max_size=7).map(tuple), min_size=1, max_size=12)


def contents(batches: tuple[Batch, ...]) -> list[tuple[int, ...]]:
    found = []
    for batch in batches:
        real = torch.ones_like(batch.tokens, dtype=torch.bool) if batch.real is None else batch.real
        found += [tuple(tokens[keep].tolist()) for tokens, keep in zip(batch.tokens, real, strict=True)]
    return found


@settings(max_examples=60)
@given(sequences=SEQUENCES, batch_tokens=st.integers(1, 30), sample_every=st.integers(1, 4))
def test_batches_hold_every_sequence_once_within_their_size(
    sequences: list[tuple[int, ...]], batch_tokens: int, sample_every: int
) -> None:
    wanted = sorted(sequence for sequence in sequences if sequence)
    if not wanted:
        with pytest.raises(PromptError, match="no tokens"):
            make_batches(sequences, 10, batch_tokens, sample_every)
        return
    batches = make_batches(sequences, 10, batch_tokens, sample_every)
    assert sorted(contents(batches)) == wanted
    assert all(batch.tokens.numel() <= batch_tokens or len(batch.tokens) == 1 for batch in batches)
    sampled = sum(len(batch.tokens) for batch in batches if batch.sampled)
    assert sampled == -(-len(wanted) // sample_every)


@settings(max_examples=40)
@given(sequences=SEQUENCES.filter(any), seed=st.randoms())
def test_the_order_of_the_sequences_does_not_matter(sequences: list[tuple[int, ...]], seed: Random) -> None:
    shuffled = list(sequences)
    seed.shuffle(shuffled)
    one, other = (make_batches(order, 10, 16, 2) for order in (sequences, shuffled))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(one, other, strict=True))


def test_rows_leave_padding_out() -> None:
    (batch,) = make_batches([(1, 2, 3), (4,)], 10, 100, 1)
    values = torch.arange(6.0).view(2, 3, 1)
    assert batch.rows(values).flatten().tolist() == [0.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("token", [-1, 10])
def test_a_token_that_the_model_does_not_have_is_refused(token: int) -> None:
    with pytest.raises(PromptError, match=rf"found {token}; expected 0 to 9"):
        make_batches([(1, token)], 10, 100, 1)


@pytest.mark.parametrize(("tokens", "interval"), [(100, 1), (8192, 1), (16384, 2), (32768, 4), (10**6, 4)])
def test_the_sample_is_a_quarter_but_not_under_8192_tokens(tokens: int, interval: int) -> None:
    assert sampling_interval(tokens) == interval
