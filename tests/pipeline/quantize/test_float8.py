"""Float8 weights are the nearest there are, scaled row by row or block by block."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gristmill.pipeline.quantize.float8 import quantize_float8
from gristmill.pipeline.quantize.grids import dequantized, grouped
from gristmill.runtime.errors import InputError, ModelError
from gristmill.runtime.scheme import QuantScheme

ROW = QuantScheme(8, -1, True, "float")
BLOCK = QuantScheme(8, 16, True, "float")
weights = arrays(np.float32, (20, 32), elements=st.floats(-1e3, 1e3, width=32))


def every_value() -> torch.Tensor:
    """All finite float8 numbers, in order."""
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    return values[values.isfinite()].sort().values


@pytest.mark.parametrize("scheme", [ROW, BLOCK], ids=["row", "block"])
@given(weight=weights)
def test_each_weight_becomes_the_nearest_value_of_its_scale(
    scheme: QuantScheme, weight: np.ndarray[tuple[int, int], np.dtype[np.float32]]
) -> None:
    tensor = quantize_float8(torch.from_numpy(weight.copy()), scheme)
    found = dequantized(tensor, torch.float32)
    np.testing.assert_array_equal(found.numpy(), tensor.dequantize())
    columns = tensor.column_groups
    scales = torch.from_numpy(tensor.scales[:, columns])
    steps = torch.from_numpy(weight) / scales
    nearest = (steps[..., None] - every_value()).abs().amin(-1)
    assert torch.equal((steps - found / scales).abs() <= nearest * (1 + 1e-5) + 1e-6, steps == steps)


def test_scales_bring_the_largest_of_each_block_to_the_largest_number() -> None:
    weight = torch.zeros(20, 32)
    weight[3, 5], weight[17, 20] = 448.0, -896.0
    scales = quantize_float8(weight, BLOCK).scales
    assert scales[:16].tolist() == [[1.0, 1.0]] * 16  # a block of zeros has scale 1
    assert scales[16:].tolist() == [[1.0, 2.0]] * 4


@pytest.mark.parametrize("scheme", [ROW, BLOCK], ids=["row", "block"])
def test_the_best_scale_within_an_octave_loses_less_than_the_one_that_holds_the_largest(
    scheme: QuantScheme,
) -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    blocks = weight.view(-1, scheme.group_rows, *grouped(weight, scheme).shape[1:])
    exact = blocks.abs().amax((1, 3), keepdim=True) / 448
    plain = ((blocks / exact).to(torch.float8_e4m3fn).float() * exact).view_as(weight)
    found = dequantized(quantize_float8(weight, scheme), torch.float32)
    assert (found - weight).square().sum() < 0.92 * (plain - weight).square().sum()


def test_rows_of_zeros_and_of_subnormals_stay_finite() -> None:
    weight = torch.zeros(3, 16)
    weight[1] = 1e-42
    weight[2, 0], weight[2, 1] = 448.0, 2**-9
    tensor = quantize_float8(weight, ROW)
    assert np.isfinite(tensor.dequantize()).all()
    assert (tensor.codes[0] == 0).all()
    assert tensor.codes[2, 1] == 1


def test_a_weight_above_a_rounded_scale_is_clamped_and_never_nan() -> None:
    weight = torch.rand(64, 16, generator=torch.Generator().manual_seed(0)) * 5
    assert not ((quantize_float8(weight, ROW).codes & 0x7F) == 0x7F).any()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(value: float) -> None:
    weight = torch.ones(4, 16)
    weight[2, 3] = value
    with pytest.raises(ModelError, match=r"a scale of layers\.0\.q"):
        quantize_float8(weight, ROW, name="layers.0.q")


def test_a_block_that_does_not_divide_the_columns_is_refused() -> None:
    with pytest.raises(InputError, match="16 does not divide 24"):
        quantize_float8(torch.ones(4, 24), BLOCK)
