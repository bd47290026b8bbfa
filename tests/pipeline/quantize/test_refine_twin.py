"""Refined codes and scales are the best ones while the other stays; together they only gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize import refine as module
from gristmill.pipeline.quantize.gptq import GptqSettings, quantize_gptq
from gristmill.pipeline.quantize.grids import Grid, min_max_grid, nearest_codes
from gristmill.pipeline.quantize.refine import descend_codes, refine, refit_scales
from gristmill.runtime.errors import ModelError
from gristmill.runtime.scheme import QuantScheme

ROWS, COLUMNS, SIZE = 5, 48, 16
RIDGE = 0.05
SCHEMES = [
    QuantScheme(4, SIZE, symmetric=True, scale_dtype="float32"),
    QuantScheme(3, SIZE, symmetric=False, scale_dtype="float32"),
]
by_name = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)

StatisticsOf = Callable[[torch.Tensor], InputStatistics]


def a_weight(seed: int = 0, rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(seed))


def a_hessian(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 100)
    rows = torch.randn(200, COLUMNS, generator=generator) @ torch.randn(COLUMNS, COLUMNS, generator=generator)
    return rows.T @ rows / (200 * COLUMNS)


def some_inputs() -> torch.Tensor:
    return torch.randn(300, COLUMNS, generator=torch.Generator().manual_seed(5))


def levels_of(codes: torch.Tensor, grid: Grid) -> torch.Tensor:
    return (codes.view(len(codes), -1, SIZE) - grid.zeros[..., None]).double()


def error(weight: torch.Tensor, codes: torch.Tensor, grid: Grid, damped: torch.Tensor) -> torch.Tensor:
    """Of each row, float64 [N]."""
    errors = (levels_of(codes, grid) * grid.scales[..., None].double()).view_as(weight) - weight.double()
    return ((errors @ damped.double()) * errors).sum(-1)


def slow_descent(weight: torch.Tensor, codes: torch.Tensor, grid: Grid, damped: torch.Tensor) -> torch.Tensor:
    """Every code tried for every column in turn."""
    best = codes.clone()
    for column in range(COLUMNS):
        tried = []
        for code in range(grid.scheme.max_code + 1):
            best[:, column] = code
            tried.append(error(weight, best, grid, damped))
        best[:, column] = torch.stack(tried).argmin(0).float()
    return best


def slow_scales(weight: torch.Tensor, codes: torch.Tensor, grid: Grid, damped: torch.Tensor) -> torch.Tensor:
    """Least squares over the columns of R, where R^T R is the damped Hessian."""
    root = torch.linalg.cholesky(damped.double()).T
    found = []
    for row, levels in zip(weight.double(), levels_of(codes, grid), strict=True):
        parts = torch.zeros(len(levels), COLUMNS, dtype=torch.float64)
        for group, own in enumerate(levels):
            parts[group, group * SIZE : (group + 1) * SIZE] = own
        found.append(torch.linalg.lstsq(root @ parts.T, (root @ row)[:, None]).solution[:, 0])
    return torch.stack(found)


@by_name
@pytest.mark.parametrize("seed", [0, 1])
def test_descended_codes_are_those_of_trying_all(scheme: QuantScheme, seed: int) -> None:
    weight, hessian = a_weight(seed), a_hessian(seed)
    grid = min_max_grid(weight, scheme, 0.8)
    codes = nearest_codes(weight, grid)
    wanted = slow_descent(weight, codes, grid, hessian + RIDGE * torch.eye(COLUMNS))
    assert torch.equal(descend_codes(weight, codes, grid, hessian, RIDGE), wanted)
    assert not torch.equal(codes, wanted)


@by_name
def test_refitted_scales_are_those_of_least_squares(scheme: QuantScheme) -> None:
    weight, hessian = a_weight(), a_hessian()
    grid = min_max_grid(weight, scheme)
    codes = nearest_codes(weight, grid)
    found = refit_scales(weight, codes, grid, hessian, RIDGE)
    wanted = slow_scales(weight, codes, grid, hessian + RIDGE * torch.eye(COLUMNS))
    torch.testing.assert_close(found.scales.double(), wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(found.zeros, grid.zeros)


@by_name
def test_no_round_raises_the_error_of_any_row(scheme: QuantScheme) -> None:
    weight, hessian = a_weight(), a_hessian()
    damping = RIDGE / float(hessian.diagonal().mean())
    damped, grid = hessian + RIDGE * torch.eye(COLUMNS), min_max_grid(weight, scheme)
    codes = nearest_codes(weight, grid)
    before = error(weight, codes, grid, damped)
    for rounds in (1, 2, 4):
        after = error(weight, *refine(weight, codes, grid, hessian, damping, rounds), damped)
        assert (after <= before * (1 + 1e-6)).all()
        before = after


@by_name
def test_rows_at_a_time_change_nothing(scheme: QuantScheme, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, hessian = a_weight(), a_hessian()
    grid = min_max_grid(weight, scheme)
    codes = nearest_codes(weight, grid)
    whole, whole_grid = refine(weight, codes, grid, hessian, 0.01, 2)
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", 2 * COLUMNS)
    parts, parts_grid = refine(weight, codes, grid, hessian, 0.01, 2)
    assert torch.equal(parts, whole)
    torch.testing.assert_close(parts_grid.scales, whole_grid.scales)


def test_columns_and_groups_without_input_keep_their_nearest_codes(statistics_of: StatisticsOf) -> None:
    inputs = some_inputs()
    inputs[:, 3] = inputs[:, SIZE : 2 * SIZE] = 0
    weight = a_weight()
    weight[:, 2 * SIZE :] = 0
    grid = min_max_grid(weight, SCHEMES[1])
    nearest = nearest_codes(weight, grid)
    hessian = statistics_of(inputs).hessian
    codes = descend_codes(weight, nearest, grid, hessian, RIDGE)
    assert torch.equal(codes[:, SIZE:], nearest[:, SIZE:])
    assert torch.equal(codes[:, 3], nearest[:, 3])
    assert torch.isfinite(refit_scales(weight, codes, grid, hessian, RIDGE).scales).all()


@by_name
def test_gptq_loses_less_with_it(statistics_of: StatisticsOf, scheme: QuantScheme) -> None:
    statistics = statistics_of(some_inputs() @ a_weight(rows=COLUMNS))
    weight, losses = a_weight(rows=32), []
    for rounds in (0, 2):
        tensor = quantize_gptq(weight, statistics, scheme, GptqSettings(refine=rounds))
        errors = torch.from_numpy(tensor.dequantize()) - weight
        losses.append(float(((errors @ statistics.hessian) * errors).sum()))
    assert losses[1] < 0.97 * losses[0]


def test_a_weight_that_is_not_finite_is_still_refused_by_name(statistics_of: StatisticsOf) -> None:
    weight = a_weight()
    weight[1, 7] = float("nan")
    scheme = replace(SCHEMES[0], scale_dtype="bfloat16")
    with pytest.raises(ModelError, match="up_proj"):
        quantize_gptq(weight, statistics_of(some_inputs()), scheme, GptqSettings(refine=1), name="up_proj")
