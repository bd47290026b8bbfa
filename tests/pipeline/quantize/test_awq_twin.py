"""AWQ's searches do not lose: against no scaling, against min-max ranges, against round to nearest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.prepare.fold import shared_scales
from gristmill.pipeline.quantize.awq import AwqSettings, hessian_blocks, quantize_awq, search_scales
from gristmill.pipeline.quantize.rtn import quantize_rtn
from gristmill.runtime.errors import InputError, ModelError
from gristmill.runtime.model_plan import ScalingGroup
from gristmill.runtime.scheme import QuantScheme

COLUMNS = 64
SCHEMES = [
    QuantScheme(4, 16, symmetric=True),
    QuantScheme(4, 32, symmetric=False),
    QuantScheme(3, -1, symmetric=False),
    QuantScheme(2, 16, symmetric=True),
]
by_name = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)

StatisticsOf = Callable[[torch.Tensor], InputStatistics]


def a_weight(seed: int = 0, rows: int = 24) -> torch.Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(seed))


def outlier_inputs(seed: int = 0) -> torch.Tensor:
    """Input rows in which every sixteenth channel is 30 times the others."""
    rows = torch.randn(300, COLUMNS, generator=torch.Generator().manual_seed(seed + 50))
    rows[:, 5::16] *= 30
    return rows


def slow_output_error(
    weight: torch.Tensor, inputs: torch.Tensor, scales: torch.Tensor, scheme: QuantScheme
) -> float:
    """The mean of |W x - Q(W s) (x / s)|^2, by running the linear, in float64."""
    rounded = torch.from_numpy(quantize_rtn(weight * scales, None, scheme).dequantize()).double()
    lost = inputs.double() @ weight.double().T - (inputs.double() / scales) @ rounded.T
    return float(lost.square().sum() / len(inputs))


def block_error(weight: torch.Tensor, values: torch.Tensor, inputs: torch.Tensor, size: int) -> float:
    """The output error if groups did not depend on each other."""
    lost = (values - weight).double()
    total = 0.0
    for start in range(0, COLUMNS, size):
        group = slice(start, start + size)
        total += float((inputs[:, group].double() @ lost[:, group].T).square().sum())
    return total / len(inputs)


@by_name
@pytest.mark.parametrize("seed", [0, 1])
def test_the_scales_found_are_never_worse_than_none(
    statistics_of: StatisticsOf, scheme: QuantScheme, seed: int
) -> None:
    weight = a_weight(seed)
    for inputs in (outlier_inputs(seed), a_weight(seed + 9, rows=300)):
        scales = search_scales([(weight, scheme)], statistics_of(inputs), AwqSettings())
        none = slow_output_error(weight, inputs, torch.ones(COLUMNS), scheme)
        assert slow_output_error(weight, inputs, scales, scheme) <= none * (1 + 1e-5)


@by_name
def test_awq_beats_rtn_where_channels_stand_out(statistics_of: StatisticsOf, scheme: QuantScheme) -> None:
    weight, inputs = a_weight(), outlier_inputs()
    scales = search_scales([(weight, scheme)], statistics_of(inputs), AwqSettings())
    tensor = quantize_awq(weight * scales, statistics_of(inputs / scales), scheme)
    lost = inputs.double() @ (weight - torch.from_numpy(tensor.dequantize()) / scales).double().T
    rtn = slow_output_error(weight, inputs, torch.ones(COLUMNS), scheme)
    assert float(lost.square().sum() / len(inputs)) < 0.9 * rtn


def test_one_step_finds_the_better_of_the_two_candidates_it_has(statistics_of: StatisticsOf) -> None:
    weight, inputs, scheme = a_weight(), outlier_inputs(), SCHEMES[0]
    statistics = statistics_of(inputs)
    full = statistics.abs_mean / (statistics.abs_mean.max() * statistics.abs_mean.min()).sqrt()
    best = min(
        (torch.ones(COLUMNS), full), key=lambda scales: slow_output_error(weight, inputs, scales, scheme)
    )
    found = search_scales([(weight, scheme)], statistics, AwqSettings(exponents=1))
    torch.testing.assert_close(found, best)


def test_weights_of_one_input_get_scales_that_serve_all_of_them(statistics_of: StatisticsOf) -> None:
    inputs = outlier_inputs()
    parts = [(a_weight(1), SCHEMES[0]), (a_weight(2, rows=8), SCHEMES[3])]
    scales = search_scales(parts, statistics_of(inputs), AwqSettings())
    found = sum(slow_output_error(weight, inputs, scales, scheme) for weight, scheme in parts)
    none = sum(slow_output_error(weight, inputs, torch.ones(COLUMNS), scheme) for weight, scheme in parts)
    assert found < none


def test_channels_that_share_a_source_get_one_scale(statistics_of: StatisticsOf) -> None:
    group = ScalingGroup("v_proj", "linear", (), repeats=2, block=16)
    scales = search_scales(
        [(a_weight(), SCHEMES[0])],
        statistics_of(outlier_inputs()),
        AwqSettings(),
        partial(shared_scales, group),
    )
    heads = scales.view(2, 2, 16)
    assert torch.equal(heads[:, 0], heads[:, 1])
    assert not torch.equal(scales, torch.ones(COLUMNS))


def test_scales_are_positive_and_finite_for_channels_without_input(statistics_of: StatisticsOf) -> None:
    inputs = outlier_inputs()
    inputs[:, 3] = 0
    scales = search_scales([(a_weight(), SCHEMES[0])], statistics_of(inputs), AwqSettings())
    assert (torch.isfinite(scales) & (scales > 0)).all()


def test_without_any_input_nothing_is_scaled(statistics_of: StatisticsOf) -> None:
    statistics = statistics_of(torch.zeros(3, COLUMNS))
    scales = search_scales([(a_weight(), SCHEMES[0])], statistics, AwqSettings())
    assert torch.equal(scales, torch.ones(COLUMNS))


@by_name
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_clipping_is_not_worse_than_min_and_max(
    statistics_of: StatisticsOf, scheme: QuantScheme, seed: int
) -> None:
    weight, inputs = a_weight(seed), outlier_inputs(seed)
    weight[:, 1::16] *= 4
    size = COLUMNS if scheme.group_size == -1 else scheme.group_size
    errors = [
        block_error(weight, torch.from_numpy(tensor.dequantize()), inputs, size)
        for tensor in (
            quantize_awq(weight, statistics_of(inputs), scheme, AwqSettings(search_clip=True)),
            quantize_awq(weight, statistics_of(inputs), scheme, AwqSettings(search_clip=False)),
        )
    ]
    assert errors[0] <= errors[1] * (1 + 1e-5)


def test_without_clipping_it_rounds_to_nearest(statistics_of: StatisticsOf) -> None:
    weight, scheme = a_weight(), SCHEMES[1]
    tensor = quantize_awq(weight, statistics_of(outlier_inputs()), scheme, AwqSettings(search_clip=False))
    assert tensor.codes.tolist() == quantize_rtn(weight, None, scheme).codes.tolist()


@pytest.mark.parametrize("size", [16, 32, 64])
def test_hessian_blocks_lie_on_the_diagonal(statistics_of: StatisticsOf, size: int) -> None:
    hessian = statistics_of(outlier_inputs()).hessian
    for index, block in enumerate(hessian_blocks(hessian, size)):
        group = slice(index * size, (index + 1) * size)
        assert torch.equal(block, hessian[group, group])


def test_weights_and_statistics_stay_as_they_were(statistics_of: StatisticsOf) -> None:
    weight, statistics = a_weight(), statistics_of(outlier_inputs())
    given = (weight, statistics.hessian, statistics.abs_mean, statistics.abs_max)
    before = [tensor.clone() for tensor in given]
    search_scales([(weight, SCHEMES[0])], statistics, AwqSettings())
    quantize_awq(weight, statistics, SCHEMES[0])
    assert all(torch.equal(now, then) for now, then in zip(given, before, strict=True))


@by_name
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_refused_by_name(
    statistics_of: StatisticsOf, scheme: QuantScheme, value: float
) -> None:
    weight = a_weight()
    weight[0, 0] = value
    with pytest.raises(ModelError, match="gate_proj"):
        quantize_awq(weight, statistics_of(outlier_inputs()), scheme, name="gate_proj")


def test_a_group_size_that_does_not_divide_is_refused(statistics_of: StatisticsOf) -> None:
    statistics, scheme = statistics_of(outlier_inputs()), QuantScheme(4, 48, symmetric=True)
    with pytest.raises(InputError, match="does not divide 64"):
        quantize_awq(a_weight(), statistics, scheme)
    with pytest.raises(InputError, match="does not divide 64"):
        search_scales([(a_weight(), scheme)], statistics, AwqSettings())


def test_a_search_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="AWQ setting exponents"):
        AwqSettings(exponents=0)
    with pytest.raises(InputError, match="AWQ setting sample_rows"):
        AwqSettings(sample_rows=0)
