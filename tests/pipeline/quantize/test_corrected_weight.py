"""The corrected weight is the ridge regression towards the original's outputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gristmill.calibration.drift import Drift, GroupStatistics
from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.correct import corrected_weight
from gristmill.runtime.errors import ModelError

ROWS, COLUMNS, SAMPLES = 5, 12, 200
StatisticsOf = Callable[[torch.Tensor], InputStatistics]


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


WEIGHT = random(ROWS, COLUMNS, seed=0)
ORIGINAL = random(SAMPLES, COLUMNS, seed=1)
INPUTS = ORIGINAL + 0.3 * random(SAMPLES, COLUMNS, seed=2)


def slow_ridge(outputs: torch.Tensor, damping: float) -> torch.Tensor:
    """Least squares of `outputs` on the inputs, drawn to the weight by extra samples, row by row."""
    strength = float(damping * INPUTS.double().square().mean() * SAMPLES) ** 0.5
    left = torch.cat([INPUTS.double(), strength * torch.eye(COLUMNS).double()])
    rows = []
    for row in range(ROWS):
        right = torch.cat([outputs[:, row].double(), strength * WEIGHT[row].double()])
        rows.append(torch.linalg.lstsq(left, right[:, None]).solution[:, 0])
    return torch.stack(rows).float()


def mean_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left.T @ right / SAMPLES


@pytest.mark.parametrize("damping", [0.01, 0.5, 5.0])
def test_from_drifted_inputs_it_is_the_slow_ridge_regression(
    statistics_of: StatisticsOf, damping: float
) -> None:
    drift = Drift(mean_product(INPUTS, INPUTS), inputs=mean_product(ORIGINAL - INPUTS, INPUTS))
    found = corrected_weight(WEIGHT, GroupStatistics(statistics_of(INPUTS), drift), damping)
    torch.testing.assert_close(found, slow_ridge(ORIGINAL @ WEIGHT.T, damping), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("damping", [0.01, 0.5, 5.0])
def test_from_wanted_outputs_it_is_the_slow_ridge_regression(
    statistics_of: StatisticsOf, damping: float
) -> None:
    wanted = random(SAMPLES, ROWS, seed=3)
    drift = Drift(mean_product(INPUTS, INPUTS), outputs=mean_product(wanted - INPUTS @ WEIGHT.T, INPUTS))
    found = corrected_weight(WEIGHT, GroupStatistics(statistics_of(INPUTS), drift), damping)
    torch.testing.assert_close(found, slow_ridge(wanted, damping), rtol=1e-4, atol=1e-5)


def test_without_drift_the_weight_stays(statistics_of: StatisticsOf) -> None:
    assert corrected_weight(WEIGHT, GroupStatistics(statistics_of(INPUTS)), 0.5) is WEIGHT


def test_without_any_input_the_weight_stays(statistics_of: StatisticsOf) -> None:
    nothing = torch.zeros(COLUMNS, COLUMNS)
    known = GroupStatistics(statistics_of(INPUTS), Drift(nothing, inputs=nothing))
    assert torch.equal(corrected_weight(WEIGHT, known, 0.5), WEIGHT)


def test_weight_and_moments_stay_as_they_were(statistics_of: StatisticsOf) -> None:
    hessian, gap = mean_product(INPUTS, INPUTS), mean_product(ORIGINAL - INPUTS, INPUTS)
    before = [tensor.clone() for tensor in (WEIGHT, hessian, gap)]
    corrected_weight(WEIGHT, GroupStatistics(statistics_of(INPUTS), Drift(hessian, inputs=gap)), 0.5)
    assert all(torch.equal(now, then) for now, then in zip((WEIGHT, hessian, gap), before, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_moments_that_are_not_finite_are_refused_by_name(statistics_of: StatisticsOf, value: float) -> None:
    hessian, gap = mean_product(INPUTS, INPUTS), mean_product(ORIGINAL - INPUTS, INPUTS)
    gap[2, 3] = value
    known = GroupStatistics(statistics_of(INPUTS), Drift(hessian, inputs=gap))
    with pytest.raises(ModelError, match="the drift of k_proj can't be corrected"):
        corrected_weight(WEIGHT, known, 0.5, name="k_proj")


def test_an_indefinite_hessian_is_refused_by_name(statistics_of: StatisticsOf) -> None:
    hessian = torch.eye(COLUMNS)
    hessian[0, 1] = hessian[1, 0] = 3
    known = GroupStatistics(statistics_of(INPUTS), Drift(hessian, inputs=torch.eye(COLUMNS)))
    with pytest.raises(ModelError, match="the drift of k_proj can't be corrected"):
        corrected_weight(WEIGHT, known, 0.5, name="k_proj")
