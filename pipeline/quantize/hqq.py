"""HQQ (Badri & Shaji 2023, half-quadratic quantization): better grids from the weights alone.

Few weights are far from the rest, and a min-max grid is theirs. HQQ lets them
be badly rounded and gives the grid to the others: it minimizes the sum of
|w - dequantized|^p with p < 1 by half-quadratic splitting. In turns, the error
e that may stay is what a shrinkage keeps of the present one,

    e = sign(d) max(0, |d| - |d|^(p-1) / beta),   d = w - dequantized,

and the grid is fitted to w - e. Unlike the paper's, zero points stay whole
numbers, as formats store them, and the scale is fitted too; the best grid of
all steps is kept for each group.
"""

from __future__ import annotations

import torch

from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.grids import (
    Grid,
    grouped,
    min_max_grid,
    nearest_codes,
    quantized_tensor,
    storable_scales,
)
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

__all__ = ["hqq_grid", "quantize_hqq", "shrink"]

_NORM = 0.7
_BETA, _BETA_GROWTH = 10.0, 1.05
_STEPS = 20
_ROWS_ELEMENTS = 1 << 20


def quantize_hqq(
    weight: torch.Tensor, statistics: InputStatistics | None, scheme: QuantScheme, *, name: str = "weight"
) -> QuantizedTensor:
    """A weight, float32 [N, K], to the nearest codes of `hqq_grid`; the statistics are not used.

    Raises ModelError, naming the linear, for a scale that is not finite.
    """
    del statistics
    rows = max(1, _ROWS_ELEMENTS // weight.shape[1])
    grids = [hqq_grid(part, scheme) for part in torch.split(weight, rows)]
    grid = Grid(scheme, torch.cat([part.scales for part in grids]), torch.cat([part.zeros for part in grids]))
    return quantized_tensor(nearest_codes(weight, grid), grid, name)


def hqq_grid(weight: torch.Tensor, scheme: QuantScheme) -> Grid:
    """The grid with the least sum of |error|^0.7 that was met from the min-max grid on, group by group."""
    values, best = grouped(weight, scheme), min_max_grid(weight, scheme)
    present = best
    errors = values - _rounded(weight, best)[1]
    least = _loss(errors)
    beta = _BETA
    for _ in range(_STEPS):
        # In units of the step, so that one beta fits every group.
        steps = present.scales[..., None]
        target = values - shrink(errors / steps, beta) * steps
        present = _fitted(target, _rounded(weight, present)[0], present)
        errors = values - _rounded(weight, present)[1]
        loss = _loss(errors)
        better = loss < least
        least = torch.where(better, loss, least)
        scales = torch.where(better, present.scales, best.scales)
        best = Grid(scheme, scales, torch.where(better, present.zeros, best.zeros))
        beta *= _BETA_GROWTH
    return best


def shrink(errors: torch.Tensor, beta: float) -> torch.Tensor:
    """The generalized soft threshold of the l_p norm: sign(d) max(0, |d| - |d|^(p-1) / beta)."""
    sizes = errors.abs().clamp_(min=torch.finfo(torch.float32).tiny ** 0.5)
    return errors.sign() * (sizes - sizes.pow(_NORM - 1) / beta).clamp_(min=0)


def _rounded(weight: torch.Tensor, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and the values that they mean, each [N, G, size]."""
    codes = grouped(nearest_codes(weight, grid), grid.scheme)
    return codes, (codes - grid.zeros[..., None]) * grid.scales[..., None]


def _fitted(target: torch.Tensor, codes: torch.Tensor, grid: Grid) -> Grid:
    """The scales, then the zero points, with which `codes` come nearest to `target` in squares."""
    steps = codes - grid.zeros[..., None]
    power = steps.square().sum(-1)
    scales = (steps * target).sum(-1) / power.clamp(min=1)
    scales = torch.where((power > 0) & (scales > 0), scales, grid.scales)
    scales = storable_scales(scales, grid.scheme)
    if grid.scheme.symmetric:
        return Grid(grid.scheme, scales, grid.zeros)
    zeros = (codes - target / scales[..., None]).mean(-1).round_().clamp_(0, grid.scheme.max_code)
    return Grid(grid.scheme, scales, zeros)


def _loss(errors: torch.Tensor) -> torch.Tensor:
    return errors.abs().pow(_NORM).sum(-1)
