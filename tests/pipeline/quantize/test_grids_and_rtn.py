"""Grids and round to nearest give what plain loops give, for every kind of group."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import ml_dtypes
import numpy as np
import pytest
import torch

from gristmill.pipeline.quantize.grids import (
    SHRINK_FACTORS,
    dequantized,
    min_max_grid,
    nearest_codes,
    searched_grid,
)
from gristmill.pipeline.quantize.rtn import quantize_rtn
from gristmill.runtime.errors import InputError, ModelError
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme, ScaleDtype

COLUMNS = 64
STORED = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
SCHEMES = [
    QuantScheme(bits, group, symmetric)
    for bits, group, symmetric in product((2, 3, 4, 8), (16, 32, -1), (True, False))
]
OPPOSITE = {True: "symmetric", False: "asymmetric"}


@dataclass(frozen=True)
class Group:
    """One group, quantized one weight at a time."""

    scale: float
    zero: int
    codes: list[int]


def slow_group(values: list[float], scheme: QuantScheme, shrink: float = 1.0) -> Group:
    low, high = min(0.0, *values), max(0.0, *values)
    if scheme.symmetric:
        high = max(abs(value) for value in values)
        low = -high
    top = 2**scheme.bits - 1
    width = np.float32(high) * np.float32(shrink) - np.float32(low) * np.float32(shrink)
    scale = np.float32(STORED[scheme.scale_dtype](width / np.float32(top)))
    if width == 0:
        scale = np.float32(1)
    zero = 2 ** (scheme.bits - 1)
    if not scheme.symmetric:
        zero = min(top, max(0, int(np.rint(-np.float32(low) * np.float32(shrink) / scale))))
    codes = [min(top, max(0, int(np.rint(np.float32(value) / scale)) + zero)) for value in values]
    return Group(float(scale), zero, codes)


def groups_of(row: list[float], scheme: QuantScheme) -> list[list[float]]:
    size = len(row) if scheme.group_size == -1 else scheme.group_size
    return [row[start : start + size] for start in range(0, len(row), size)]


def a_weight() -> torch.Tensor:
    """Random rows, and the rows that grids go wrong on."""
    weight = torch.randn(9, COLUMNS, generator=torch.Generator().manual_seed(1))
    weight[3] = 0
    weight[4] = 0.37
    weight[5] = -0.37
    weight[6] = -weight[6].abs() - 0.1
    weight[7] = weight[7].abs() + 0.1
    weight[8, : COLUMNS // 4] = 0
    return weight


def assert_is_slow_twin(found: QuantizedTensor, weight: torch.Tensor) -> None:
    scheme = found.scheme
    expected = [[slow_group(group, scheme) for group in groups_of(row, scheme)] for row in weight.tolist()]
    assert found.scales.tolist() == [[group.scale for group in row] for row in expected]
    assert found.codes.tolist() == [[code for group in row for code in group.codes] for row in expected]
    if found.zero_points is not None:
        assert found.zero_points.tolist() == [[group.zero for group in row] for row in expected]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_rtn_is_the_slow_twin(scheme: QuantScheme) -> None:
    weight = a_weight()
    assert_is_slow_twin(quantize_rtn(weight, None, scheme), weight)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("symmetric", [True, False], ids=OPPOSITE.__getitem__)
def test_codes_belong_to_the_scale_as_it_is_stored(dtype: ScaleDtype, symmetric: bool) -> None:
    weight = a_weight()
    tensor = quantize_rtn(weight, None, QuantScheme(4, 16, symmetric, scale_dtype=dtype))
    np.testing.assert_array_equal(tensor.scales, tensor.scales.astype(STORED[dtype]).astype(np.float32))
    assert_is_slow_twin(tensor, weight)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_zeros_stay_exactly_zero(scheme: QuantScheme) -> None:
    weight = a_weight()
    values = quantize_rtn(weight, None, scheme).dequantize()
    assert not values[weight.numpy() == 0].any()


@pytest.mark.parametrize("row", [4, 5], ids=["positive", "negative"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_constant_row_is_kept_to_the_precision_of_its_scale(row: int, bits: int) -> None:
    weight = a_weight()[row : row + 1]
    values = quantize_rtn(weight, None, QuantScheme(bits, -1, symmetric=False)).dequantize()
    np.testing.assert_allclose(values, weight.numpy(), rtol=2**-8)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_no_weight_is_further_than_a_step_from_its_code(scheme: QuantScheme) -> None:
    weight = a_weight()
    tensor = quantize_rtn(weight, None, scheme)
    steps = tensor.scales[:, tensor.column_groups]
    # Half a step by rounding; at the ends of the range up to half a step more, and 2^-9 of it for the scale.
    assert (np.abs(tensor.dequantize() - weight.numpy()) <= steps * (1 + 2**-9 * scheme.max_code)).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_dequantized_is_what_the_codes_mean(scheme: QuantScheme) -> None:
    tensor = quantize_rtn(a_weight(), None, scheme)
    np.testing.assert_array_equal(dequantized(tensor, torch.float32).numpy(), tensor.dequantize())


@pytest.mark.parametrize("symmetric", [True, False], ids=OPPOSITE.__getitem__)
@pytest.mark.parametrize("blocks", [False, True], ids=["diagonal", "blocks"])
def test_the_searched_grid_is_the_best_one_of_a_plain_search(symmetric: bool, blocks: bool) -> None:
    weight, scheme = a_weight(), QuantScheme(3, 16, symmetric)
    inputs = torch.randn(200, COLUMNS, generator=torch.Generator().manual_seed(2))
    hessian = inputs.T @ inputs / 200
    parts = torch.stack([hessian[start : start + 16, start : start + 16] for start in range(0, COLUMNS, 16)])
    grid = searched_grid(weight, scheme, parts if blocks else hessian.diagonal())
    for row, values in enumerate(weight.tolist()):
        for index, group in enumerate(groups_of(values, scheme)):
            measure = parts[index].double() if blocks else parts[index].diagonal().diag().double()
            best = slow_search(group, scheme, measure)
            assert grid.scales[row, index].item() == best.scale
            assert grid.zeros[row, index].item() == best.zero


def slow_search(values: list[float], scheme: QuantScheme, measure: torch.Tensor) -> Group:
    def error(group: Group) -> float:
        lost = torch.tensor([(c - group.zero) * group.scale for c in group.codes]).double()
        lost -= torch.tensor(values)
        return float(lost @ measure @ lost)

    return min((slow_group(values, scheme, shrink) for shrink in SHRINK_FACTORS), key=error)


def test_a_search_in_several_pieces_finds_the_same_grids() -> None:
    weight = torch.randn(600, 1024, generator=torch.Generator().manual_seed(3))
    scheme, importance = QuantScheme(4, 32, symmetric=True), torch.linspace(1, 2, 1024)
    whole = searched_grid(weight, scheme, importance)
    part = searched_grid(weight[500:], scheme, importance)
    assert torch.equal(whole.scales[500:], part.scales)


def test_grids_and_codes_leave_the_weight_as_it_was() -> None:
    weight, scheme = a_weight(), QuantScheme(4, 16, symmetric=False)
    importance = torch.rand(COLUMNS)
    before = weight.clone(), importance.clone()
    nearest_codes(weight, min_max_grid(weight, scheme))
    searched_grid(weight, scheme, importance)
    quantize_rtn(weight, None, scheme)
    assert torch.equal(weight, before[0])
    assert torch.equal(importance, before[1])


@pytest.mark.parametrize("symmetric", [True, False], ids=OPPOSITE.__getitem__)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_scale_too_small_to_store_is_not_stored_as_zero(dtype: ScaleDtype, symmetric: bool) -> None:
    weight = torch.full((2, 16), 1e-44 if dtype == "bfloat16" else 1e-9)
    tensor = quantize_rtn(weight, None, QuantScheme(2, 16, symmetric, scale_dtype=dtype))
    assert (tensor.scales.astype(STORED[dtype]) > 0).all()
    assert np.abs(tensor.dequantize()).max() <= 1e-4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("symmetric", [True, False], ids=OPPOSITE.__getitem__)
def test_a_weight_that_is_not_finite_is_refused_by_name(value: float, symmetric: bool) -> None:
    weight = a_weight()
    weight[2, 5] = value
    with pytest.raises(ModelError, match=r"layers\.0\.q_proj"):
        quantize_rtn(weight, None, QuantScheme(4, 16, symmetric), name="layers.0.q_proj")


def test_a_scale_beyond_its_type_is_refused_by_name() -> None:
    weight = torch.full((1, 16), 1e7)
    with pytest.raises(ModelError, match="down_proj can't be stored as float16"):
        quantize_rtn(weight, None, QuantScheme(4, 16, True, scale_dtype="float16"), name="down_proj")


def test_a_group_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="group size 48 does not divide 64"):
        quantize_rtn(a_weight(), None, QuantScheme(4, 48, symmetric=True))
