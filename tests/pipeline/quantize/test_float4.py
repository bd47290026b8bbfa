"""Float4 weights are the nearest there are, under the best of a few scales that can be stored."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from gristmill.pipeline.quantize.float4 import quantize_float4
from gristmill.pipeline.quantize.grids import dequantized
from gristmill.runtime.errors import InputError, ModelError
from gristmill.runtime.scheme import QuantScheme

NVFP4 = QuantScheme(4, 16, True, "float", "float8_e4m3fn")
MXFP4 = QuantScheme(4, 32, True, "float", "float8_e8m0fnu")
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])

both = pytest.mark.parametrize("scheme", [NVFP4, MXFP4], ids=lambda scheme: scheme.name)


def random_weight(rows: int = 24, columns: int = 96) -> torch.Tensor:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 0.05
    weight[3, 40] = 2.5
    return weight


def nearest(steps: torch.Tensor) -> torch.Tensor:
    """The float4 number nearest to each of `steps`."""
    return VALUES[(steps.abs()[..., None] - VALUES).abs().argmin(-1)] * steps.sign()


@both
@pytest.mark.parametrize("size", [1e-36, 1e-8, 1.0, 1e6, 1e37])
def test_each_weight_becomes_the_nearest_value_of_its_scale(scheme: QuantScheme, size: float) -> None:
    weight = random_weight() * size
    tensor = quantize_float4(weight, scheme)
    found = dequantized(tensor, torch.float32)
    np.testing.assert_array_equal(found.numpy(), tensor.dequantize())
    scales = torch.from_numpy(tensor.scales[:, tensor.column_groups])
    assert torch.equal(found, nearest(weight / scales) * scales)


@both
def test_scales_can_be_stored(scheme: QuantScheme) -> None:
    tensor = quantize_float4(random_weight(), scheme)
    kind = ml_dtypes.float8_e4m3fn if scheme is NVFP4 else ml_dtypes.float8_e8m0fnu
    units = tensor.scales * np.float32(tensor.global_scale or 1.0)
    np.testing.assert_array_equal(units.astype(kind).astype(np.float32), units)


@both
def test_no_group_loses_more_than_with_the_scale_of_its_largest_weight(scheme: QuantScheme) -> None:
    weight = random_weight()
    tensor = quantize_float4(weight, scheme)
    groups = weight.view(24, -1, scheme.group_size)
    exact = groups.abs().amax(-1) / 6
    if tensor.global_scale is None:
        plain = torch.exp2(torch.ceil(torch.log2(exact)))
    else:
        plain = (exact * tensor.global_scale).to(torch.float8_e4m3fn).float() / tensor.global_scale
    rounded = nearest(groups / plain[..., None]) * plain[..., None]
    lost = (torch.from_numpy(tensor.dequantize()) - weight).view_as(groups).square().sum(-1)
    assert (lost <= (rounded - groups).square().sum(-1) * (1 + 1e-5)).all()


def test_a_large_weight_is_rounded_in_pieces_to_the_same() -> None:
    weight = random_weight(rows=3000)
    whole, half = quantize_float4(weight, NVFP4), quantize_float4(weight[:1500], NVFP4)
    np.testing.assert_array_equal(whole.codes[:1500], half.codes)
    np.testing.assert_array_equal(whole.scales[:1500], half.scales)


def test_weights_near_the_smallest_of_float32_have_a_global_scale_that_it_holds() -> None:
    tensor = quantize_float4(torch.full((1, 16), 1e-42), NVFP4)
    assert np.isfinite(np.float32(tensor.global_scale))


def test_the_global_scale_uses_the_range_of_float8_and_is_a_power_of_two() -> None:
    tensor = quantize_float4(random_weight(), NVFP4)
    assert tensor.global_scale is not None
    assert np.frexp(tensor.global_scale)[0] == 0.5
    assert 100 < tensor.scales.max() * tensor.global_scale <= 448


def test_a_weight_beside_a_much_larger_one_is_zero_and_finite() -> None:
    weight = torch.full((2, 32), 1e-12)
    weight[0, 0] = 1e3
    values = quantize_float4(weight, NVFP4).dequantize()
    assert np.isfinite(values).all()
    assert np.count_nonzero(values) == 1


@both
def test_zeros_stay_zeros(scheme: QuantScheme) -> None:
    tensor = quantize_float4(torch.zeros(4, 32), scheme)
    assert not tensor.dequantize().any()
    assert (tensor.scales > 0).all()


@both
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(scheme: QuantScheme, value: float) -> None:
    weight = torch.ones(4, 32)
    weight[2, 3] = value
    with pytest.raises(ModelError, match=r"a weight of layers\.0\.q is not finite"):
        quantize_float4(weight, scheme, name="layers.0.q")


def test_groups_that_do_not_divide_the_columns_are_refused() -> None:
    with pytest.raises(InputError, match="32 does not divide 48"):
        quantize_float4(torch.ones(4, 48), MXFP4)
