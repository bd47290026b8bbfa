"""GPTQ's codes are those of the paper's own update with the full inverse Hessian."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.gptq import GptqSettings, factorize_hessian, gptq_codes, quantize_gptq
from gristmill.pipeline.quantize.grids import Grid, min_max_grid, nearest_codes
from gristmill.pipeline.quantize.rtn import quantize_rtn
from gristmill.runtime.errors import InputError, ModelError
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

COLUMNS = 48
SCHEMES = [
    QuantScheme(4, 16, symmetric=True),
    QuantScheme(4, 16, symmetric=False),
    QuantScheme(3, -1, symmetric=False),
    QuantScheme(8, 16, symmetric=True),
]
by_name = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
with_and_without_order = pytest.mark.parametrize("act_order", [True, False], ids=["act_order", "in_place"])

StatisticsOf = Callable[[torch.Tensor], InputStatistics]


def a_weight(seed: int = 0, rows: int = 6, columns: int = COLUMNS) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def correlated_inputs(seed: int = 0, columns: int = COLUMNS) -> torch.Tensor:
    """Input rows whose channels depend on each other and differ in size."""
    generator = torch.Generator().manual_seed(seed + 100)
    mixing = torch.randn(columns, columns, generator=generator) * (1 / math.sqrt(columns))
    sizes = torch.logspace(-1, 1, columns)[torch.randperm(columns, generator=generator)]
    rows = torch.randn(400, columns, generator=generator)
    return rows @ (mixing + 0.5 * torch.eye(columns)) * sizes


def slow_gptq(
    weight: torch.Tensor, grid: Grid, hessian: torch.Tensor, settings: GptqSettings
) -> torch.Tensor:
    """Equations 2 and 3 of the paper, one column at a time, in float64."""
    columns = weight.shape[1]
    diagonal = hessian.diagonal().tolist()
    damped = hessian.double()
    mean = sum(diagonal) / columns
    for column in range(columns):
        damped[column, column] += settings.damping * mean + (mean if diagonal[column] == 0 else 0)
    inverse = torch.linalg.inv(damped)
    order = sorted(range(columns), key=lambda k: -diagonal[k]) if settings.act_order else list(range(columns))
    work, codes = weight.double(), torch.zeros_like(weight)
    size = columns // grid.scales.shape[1]
    for column in order:
        scale, zero = grid.scales[:, column // size].double(), grid.zeros[:, column // size].double()
        codes[:, column] = (torch.round(work[:, column] / scale) + zero).clamp(0, grid.scheme.max_code)
        error = (work[:, column] - (codes[:, column] - zero) * scale) / inverse[column, column]
        work = work - torch.outer(error, inverse[column])
        inverse = inverse - torch.outer(inverse[:, column], inverse[column]) / inverse[column, column]
    return codes


def output_error(weight: torch.Tensor, tensor: QuantizedTensor, hessian: torch.Tensor) -> float:
    errors = (torch.from_numpy(tensor.dequantize()) - weight).double()
    return float(torch.trace(errors @ hessian.double() @ errors.T))


@by_name
@with_and_without_order
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_codes_are_those_of_the_slow_twin(
    statistics_of: StatisticsOf, scheme: QuantScheme, act_order: bool, seed: int
) -> None:
    weight, hessian = a_weight(seed), statistics_of(correlated_inputs(seed)).hessian
    settings = GptqSettings(act_order=act_order)
    grid = min_max_grid(weight, scheme)
    codes = gptq_codes(weight, grid, factorize_hessian(hessian, settings))
    assert torch.equal(codes, slow_gptq(weight, grid, hessian, settings))


@with_and_without_order
@pytest.mark.parametrize("block_columns", [1, 5, 16, 47, 48, 1000])
def test_the_block_of_columns_changes_no_code(
    statistics_of: StatisticsOf, act_order: bool, block_columns: int
) -> None:
    weight = a_weight()
    factor = factorize_hessian(statistics_of(correlated_inputs()).hessian, GptqSettings(act_order=act_order))
    grid = min_max_grid(weight, SCHEMES[0])
    assert torch.equal(gptq_codes(weight, grid, factor, block_columns), gptq_codes(weight, grid, factor))


def test_independent_inputs_need_no_correction() -> None:
    weight, grid = a_weight(), min_max_grid(a_weight(), SCHEMES[0])
    factor = factorize_hessian(torch.linspace(1, 2, COLUMNS).diag(), GptqSettings())
    assert torch.equal(gptq_codes(weight, grid, factor), nearest_codes(weight, grid))


@by_name
@with_and_without_order
@pytest.mark.parametrize("search_grid", [True, False], ids=["searched", "min_max"])
def test_its_output_error_is_below_that_of_rtn(
    statistics_of: StatisticsOf, scheme: QuantScheme, act_order: bool, search_grid: bool
) -> None:
    weight, statistics = a_weight(rows=32), statistics_of(correlated_inputs())
    settings = GptqSettings(act_order=act_order, search_grid=search_grid)
    gptq = output_error(weight, quantize_gptq(weight, statistics, scheme, settings), statistics.hessian)
    rtn = output_error(weight, quantize_rtn(weight, None, scheme), statistics.hessian)
    assert gptq < 0.8 * rtn


@with_and_without_order
def test_columns_without_input_keep_their_nearest_codes(statistics_of: StatisticsOf, act_order: bool) -> None:
    inputs, weight = correlated_inputs(), a_weight()
    dead = [0, 17, 47]
    inputs[:, dead] = 0
    hessian, settings = statistics_of(inputs).hessian, GptqSettings(act_order=act_order)
    grid = min_max_grid(weight, SCHEMES[1])
    codes = gptq_codes(weight, grid, factorize_hessian(hessian, settings))
    assert torch.equal(codes[:, dead], nearest_codes(weight, grid)[:, dead])
    assert torch.equal(codes, slow_gptq(weight, grid, hessian, settings))


def test_a_linear_that_never_had_an_input_is_rounded_to_nearest(statistics_of: StatisticsOf) -> None:
    weight, scheme = a_weight(), SCHEMES[0]
    tensor = quantize_gptq(weight, statistics_of(torch.zeros(4, COLUMNS)), scheme)
    np.testing.assert_array_equal(tensor.codes, quantize_rtn(weight, None, scheme).codes)


def test_the_factor_is_that_of_the_inverse(statistics_of: StatisticsOf) -> None:
    hessian = statistics_of(correlated_inputs()).hessian
    factor = factorize_hessian(hessian, GptqSettings(damping=0.1))
    damped = hessian.double() + 0.1 * hessian.diagonal().double().mean() * torch.eye(COLUMNS)
    expected = torch.linalg.inv(damped)[factor.order][:, factor.order]
    torch.testing.assert_close((factor.upper.T @ factor.upper).double(), expected, rtol=1e-3, atol=1e-5)
    assert torch.equal(factor.upper, factor.upper.triu())


def test_damping_is_kept_where_it_suffices(statistics_of: StatisticsOf) -> None:
    factor = factorize_hessian(statistics_of(correlated_inputs()).hessian, GptqSettings(damping=0.03))
    assert factor.damping == 0.03


def test_a_hessian_that_float32_finds_indefinite_is_factorized_in_float64_with_the_same_damping() -> None:
    factor = factorize_hessian(torch.ones(COLUMNS, COLUMNS), GptqSettings(damping=1e-8))
    assert (factor.damping, factor.dtype) == (1e-8, torch.float64)
    assert factor.upper.dtype == torch.float32


def test_damping_is_doubled_until_a_singular_hessian_can_be_factorized() -> None:
    settings = GptqSettings(damping=1e-18)
    factor = factorize_hessian(torch.ones(COLUMNS, COLUMNS), settings)
    doublings = np.log2(factor.damping / settings.damping)
    assert doublings >= 1
    assert doublings == round(doublings)
    assert torch.isfinite(factor.upper).all()


def test_damping_stops_at_the_first_that_suffices() -> None:
    hessian = torch.eye(COLUMNS)
    hessian[0, 1] = hessian[1, 0] = 1.05  # least eigenvalue -0.05
    assert factorize_hessian(hessian, GptqSettings(damping=0.01)).damping == pytest.approx(0.08)


def test_a_hessian_beyond_help_is_refused_by_name() -> None:
    hessian = torch.eye(COLUMNS)
    hessian[0, 1] = hessian[1, 0] = 100
    with pytest.raises(ModelError, match="Hessian of o_proj can't be factorized"):
        factorize_hessian(hessian, GptqSettings(damping=0.01), name="o_proj")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [(3, 3), (2, 9)], ids=["diagonal", "beside_it"])
def test_a_hessian_that_is_not_finite_is_refused_by_name(
    statistics_of: StatisticsOf, value: float, place: tuple[int, int]
) -> None:
    statistics = statistics_of(correlated_inputs())
    statistics.hessian[place] = statistics.hessian[place[::-1]] = value
    with pytest.raises(ModelError, match="up_proj"):
        quantize_gptq(a_weight(), statistics, SCHEMES[0], name="up_proj")


@by_name
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_refused_by_name(
    statistics_of: StatisticsOf, scheme: QuantScheme, value: float
) -> None:
    weight = a_weight()
    weight[1, 7] = value
    with pytest.raises(ModelError, match="up_proj"):
        quantize_gptq(weight, statistics_of(correlated_inputs()), scheme, name="up_proj")


def test_a_group_size_that_does_not_divide_is_refused(statistics_of: StatisticsOf) -> None:
    with pytest.raises(InputError, match="does not divide 48"):
        quantize_gptq(a_weight(), statistics_of(correlated_inputs()), QuantScheme(4, 32, symmetric=True))


@with_and_without_order
def test_weight_and_hessian_stay_as_they_were(statistics_of: StatisticsOf, act_order: bool) -> None:
    weight, statistics = a_weight(), statistics_of(correlated_inputs())
    statistics.hessian[:, 4] = statistics.hessian[4] = 0
    before = weight.clone(), statistics.hessian.clone()
    quantize_gptq(weight, statistics, SCHEMES[1], GptqSettings(act_order=act_order))
    assert torch.equal(weight, before[0])
    assert torch.equal(statistics.hessian, before[1])


def test_a_factor_at_hand_gives_the_same_codes(statistics_of: StatisticsOf) -> None:
    weight, statistics, settings = a_weight(), statistics_of(correlated_inputs()), GptqSettings()
    factor = factorize_hessian(statistics.hessian, settings)
    shared = quantize_gptq(weight, statistics, SCHEMES[0], settings, factor=factor)
    np.testing.assert_array_equal(shared.codes, quantize_gptq(weight, statistics, SCHEMES[0], settings).codes)


@pytest.mark.parametrize("damping", [0.0, -0.1, 1.5, float("nan")])
def test_damping_out_of_range_is_refused(damping: float) -> None:
    with pytest.raises(InputError, match="GPTQ damping"):
        GptqSettings(damping=damping)


def test_an_empty_block_of_columns_is_refused() -> None:
    with pytest.raises(InputError, match="GPTQ block of columns"):
        GptqSettings(block_columns=0)
