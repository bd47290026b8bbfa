"""Statistics of inputs: exact, whatever the batching; refused if not finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.calibration.observers import InputObserver
from gristmill.calibration.products import average_lower_products, average_products
from gristmill.runtime.errors import InternalError, ModelError


def rows_of(count: int, features: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-2, 2, features)
    return (torch.randn(count, features, generator=generator) * scale).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("features", [48, 600])
def test_statistics_match_their_definition_in_double_precision(dtype: torch.dtype, features: int) -> None:
    rows = rows_of(700, features, dtype)
    observer = InputObserver("layer", features)
    for part in torch.split(rows, 300):
        observer.update(part)
    found, exact = observer.statistics(), rows.double()
    sizes = exact.norm(dim=0)
    torch.testing.assert_close(
        found.hessian.double() / (sizes[:, None] * sizes),
        (exact.T @ exact) / 700 / (sizes[:, None] * sizes),
        rtol=0,
        atol=1e-8,
    )
    torch.testing.assert_close(found.abs_mean.double(), exact.abs().mean(0), rtol=1e-6, atol=0)
    assert torch.equal(found.abs_max.double(), exact.abs().amax(0))
    assert found.tokens == 700


@settings(deadline=None, max_examples=25)
@given(cuts=st.lists(st.integers(1, 199), max_size=6, unique=True), seed=st.integers(0, 100))
def test_batching_and_order_do_not_matter(cuts: list[int], seed: int) -> None:
    rows = rows_of(200, 16, torch.bfloat16)
    whole = InputObserver("layer", 16)
    whole.update(rows)
    parts = InputObserver("layer", 16)
    shuffled = rows[torch.randperm(200, generator=torch.Generator().manual_seed(seed))]
    for part in shuffled.tensor_split(sorted(cuts)):
        parts.update(part)
    one, other = whole.statistics(), parts.statistics()
    largest = float(one.hessian.max())
    torch.testing.assert_close(one.hessian, other.hessian, rtol=1e-5, atol=1e-6 * largest)
    torch.testing.assert_close(one.abs_mean, other.abs_mean)
    assert torch.equal(one.abs_max, other.abs_max)


def test_rows_with_and_without_a_gap_count_alike_and_gaps_for_themselves() -> None:
    rows, gap = rows_of(90, 8, torch.float32), rows_of(30, 5, torch.float32, seed=1)
    observer = InputObserver("layer", 8, 5)
    observer.update(rows[:60])
    observer.update(rows[60:80], gap[:20])
    observer.update(rows[80:], gap[20:])
    moments = observer.gap_moments()
    assert moments is not None
    torch.testing.assert_close(observer.statistics().hessian, rows.T @ rows / 90)
    torch.testing.assert_close(moments[0], rows[60:].T @ rows[60:] / 30)
    torch.testing.assert_close(moments[1], gap.T @ rows[60:] / 30)


def test_the_observed_tensor_is_not_changed() -> None:
    rows = rows_of(20, 8, torch.float32)
    before = rows.clone()
    InputObserver("layer", 8).update(rows)
    assert torch.equal(rows, before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_input_that_is_not_finite_is_refused_by_name(value: float) -> None:
    rows = rows_of(10, 8, torch.float32)
    rows[3, 5] = value
    with pytest.raises(ModelError, match=r"input of model\.layers\.3\.mlp\.down_proj .*channel 5"):
        InputObserver("model.layers.3.mlp.down_proj", 8).update(rows)


def test_a_second_moment_beyond_float32_is_refused() -> None:
    observer = InputObserver("down", 4)
    observer.update(torch.full((2, 4), 3e20))
    with pytest.raises(ModelError, match="second moment of the input of down"):
        observer.statistics()


def test_no_rows_are_a_fault_of_ours() -> None:
    observer = InputObserver("down", 4)
    observer.update(torch.zeros(0, 4))
    with pytest.raises(InternalError, match="no token has reached down"):
        observer.statistics()


@pytest.mark.parametrize("narrow", [True, False])
def test_products_leave_no_trace_in_torchs_settings(narrow: bool) -> None:
    switch: Any = getattr(torch.backends.mkldnn, "matmul")  # noqa: B009
    before = switch.fp32_precision
    average_products(torch.zeros(4, 4), torch.ones(3, 4), torch.ones(3, 4), 0, narrow=narrow)
    assert switch.fp32_precision == before
    with pytest.raises(RuntimeError):
        average_products(torch.zeros(4, 4), torch.ones(3, 4), torch.ones(2, 4), 0, narrow=narrow)
    assert switch.fp32_precision == before


def test_lower_products_are_the_lower_half_of_products() -> None:
    values = rows_of(64, 1100, torch.bfloat16).float()
    whole, lower = torch.ones(1100, 1100), torch.ones(1100, 1100)
    average_products(whole, values, values, 10, narrow=True)
    average_lower_products(lower, values, 10, narrow=True)
    torch.testing.assert_close(lower.tril(), whole.tril(), rtol=1e-6, atol=1e-3)
