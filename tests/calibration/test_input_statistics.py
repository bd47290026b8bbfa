"""Statistics of inputs are plain means over real tokens, however the tokens arrive."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.calibration.batches import make_batches
from gristmill.calibration.observers import InputObserver
from gristmill.calibration.products import average_products
from gristmill.calibration.statistics import InputStatistics
from gristmill.runtime.errors import InternalError, ModelError, PromptError

DTYPES = (torch.float32, torch.bfloat16)
WIDTHS = (1, 7, 512, 600)  # below, at and above one panel of the symmetric product


def random_rows(tokens: int, features: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tokens * 1000 + features)
    return torch.randn(tokens, features, generator=generator).to(dtype)


def observe(*parts: torch.Tensor) -> InputStatistics:
    observer = InputObserver("proj", parts[0].shape[1])
    for part in parts:
        observer.update(part)
    return observer.statistics()


def twin(rows: torch.Tensor) -> InputStatistics:
    """The definition, row by row, in float64."""
    features = rows.shape[1]
    hessian = torch.zeros(features, features, dtype=torch.float64)
    abs_sum = torch.zeros(features, dtype=torch.float64)
    abs_max = torch.zeros(features, dtype=torch.float64)
    for row in rows.double():
        hessian += torch.outer(row, row)
        abs_sum += row.abs()
        abs_max = torch.maximum(abs_max, row.abs())
    tokens = len(rows)
    return InputStatistics(tokens, (hessian / tokens).float(), (abs_sum / tokens).float(), abs_max.float())


def assert_same(found: InputStatistics, expected: InputStatistics) -> None:
    assert found.tokens == expected.tokens
    torch.testing.assert_close(found.hessian, expected.hessian, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.abs_mean, expected.abs_mean, rtol=1e-5, atol=1e-6)
    assert torch.equal(found.abs_max, expected.abs_max)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", WIDTHS)
def test_statistics_equal_a_loop_over_rows(features: int, dtype: torch.dtype) -> None:
    rows = random_rows(20, features, dtype)
    assert_same(observe(rows[:3], rows[3:4], rows[4:4], rows[4:]), twin(rows))


@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 30), max_size=6), seed=st.integers(0, 99))
def test_statistics_depend_neither_on_cuts_nor_on_order(cuts: list[int], seed: int) -> None:
    rows = random_rows(30, 11)
    shuffled = rows[random.Random(seed).sample(range(30), 30)]
    edges = [0, *sorted(cuts), 30]
    parts = [shuffled[start:end] for start, end in pairwise(edges)]
    assert_same(observe(*parts), twin(rows))


def test_a_long_run_keeps_its_precision() -> None:
    """Running means neither overflow nor drown what comes late."""
    rows = random_rows(4000, 5) * 1e3
    found, expected = observe(*torch.split(rows, 7)), twin(rows)
    torch.testing.assert_close(found.hessian, expected.hessian, rtol=1e-5, atol=1e-5 * 1e6)
    torch.testing.assert_close(found.abs_mean, expected.abs_mean, rtol=1e-6, atol=0)


def test_the_hessian_is_exactly_symmetric() -> None:
    hessian = observe(random_rows(9, 600)).hessian
    assert torch.equal(hessian, hessian.T)


def test_rows_are_left_as_they_were() -> None:
    rows = random_rows(6, 4)
    before = rows.clone()
    observe(rows)
    assert torch.equal(rows, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_with_and_without_a_gap_count_alike(dtype: torch.dtype) -> None:
    rows, gap = random_rows(24, 10, dtype), random_rows(9, 6, dtype).float()
    observer = InputObserver("proj", 10, 6)
    observer.update(rows[:5])
    observer.update(rows[5:14], gap)
    observer.update(rows[14:])
    assert_same(observer.statistics(), twin(rows))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gap_moments_are_means_over_the_rows_that_brought_one(dtype: torch.dtype) -> None:
    rows, gap = random_rows(24, 10, dtype), random_rows(9, 6, dtype).float()
    observer = InputObserver("proj", 10, 6)
    observer.update(rows[:5])
    observer.update(rows[5:8], gap[:3])
    observer.update(rows[8:14], gap[3:])
    moments = observer.gap_moments()
    assert moments is not None
    products = [torch.outer(g, x.float()) for g, x in zip(gap, rows[5:14], strict=True)]
    torch.testing.assert_close(moments[0], twin(rows[5:14]).hessian, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moments[1], torch.stack(products).mean(0), rtol=1e-5, atol=1e-5)


def test_there_are_no_gap_moments_without_a_gap() -> None:
    observer = InputObserver("proj", 3, 3)
    observer.update(random_rows(2, 3))
    assert observer.gap_moments() is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_input_that_is_not_finite_is_refused_by_name(dtype: torch.dtype, value: float) -> None:
    rows = random_rows(4, 6, dtype)
    rows[2, 5] = value
    with pytest.raises(ModelError, match=r"the input of layers\.3\.down is not finite.*channel 5"):
        InputObserver("layers.3.down", 6).update(rows)


def test_a_second_moment_that_overflows_is_refused_by_name() -> None:
    observer = InputObserver("layers.3.down", 2)
    observer.update(torch.full((2, 2), 1e30))
    with pytest.raises(ModelError, match=r"second moment of the input of layers\.3\.down is not finite"):
        observer.statistics()


def test_a_gap_that_is_not_finite_is_refused_by_name() -> None:
    observer = InputObserver("layers.3.down", 2, 1)
    observer.update(torch.ones(2, 2), torch.tensor([[1.0], [float("nan")]]))
    with pytest.raises(ModelError, match=r"the drift of the input of layers\.3\.down is not finite"):
        observer.gap_moments()


def test_statistics_of_no_tokens_are_a_fault_of_ours() -> None:
    with pytest.raises(InternalError, match="no token has reached proj"):
        InputObserver("proj", 2).statistics()


def test_bfloat16_products_leave_the_float32_precision_of_others_alone() -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    average, rows = torch.zeros(4, 4), torch.ones(3, 4)
    average_products(average, rows, rows, 0, narrow=True)
    with pytest.raises(RuntimeError):
        average_products(average, rows, rows[:2], 0, narrow=True)
    assert torch.backends.mkldnn.matmul.fp32_precision == before  # type: ignore[attr-defined]


@settings(max_examples=60)
@given(
    sequences=st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=12).filter(any),
    batch_tokens=st.integers(1, 30),
    sample_every=st.integers(1, 5),
)
def test_batches_hold_every_sequence_once_and_keep_to_their_size(
    sequences: list[list[int]], batch_tokens: int, sample_every: int
) -> None:
    batches = make_batches(sequences, 10, batch_tokens, sample_every)
    held: list[list[int]] = []
    for batch in batches:
        assert len(batch.tokens) == 1 or batch.tokens.numel() <= batch_tokens
        real = torch.ones_like(batch.tokens, dtype=torch.bool) if batch.real is None else batch.real
        held += [row[mask].tolist() for row, mask in zip(batch.tokens, real, strict=True)]
    assert sorted(held) == sorted(sequence for sequence in sequences if sequence)


def test_the_sample_is_every_nth_sequence_by_length() -> None:
    sequences = [[1] * length for length in (5, 3, 1, 4, 2)]
    batches = make_batches(sequences, 10, 100, 2)
    sampled = [batch.real.sum(1).tolist() for batch in batches if batch.sampled and batch.real is not None]
    assert sampled == [[1, 3, 5]]


@pytest.mark.parametrize("sequences", [[], [[]], [(), ()]])
def test_sequences_without_a_token_are_refused(sequences: list[list[int]]) -> None:
    with pytest.raises(PromptError, match="no tokens"):
        make_batches(sequences, 10, 100, 4)


@pytest.mark.parametrize("token", [-1, 10])
def test_a_token_that_is_not_in_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(PromptError, match=f"found {token}.*0 to 9"):
        make_batches([[1, 2], [3, token, 4]], 10, 100, 4)
