"""GPTQ (Frantar et al. 2022, arXiv 2210.17323): round column by column, and let later columns make up for it.

Differences from the paper, each measured in `README.md`: grids are fixed
beforehand and chosen by the error weighted with the Hessian's diagonal, so
columns can be visited in order of importance while codes stay in place; columns
without any input keep their nearest codes instead of becoming zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gristmill.calibration.statistics import InputStatistics
from gristmill.pipeline.quantize.factor import inverse_factor
from gristmill.pipeline.quantize.grids import Grid, min_max_grid, quantized_tensor, searched_grid
from gristmill.pipeline.quantize.refine import refine
from gristmill.runtime.errors import InputError, ModelError
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

__all__ = ["GptqSettings", "HessianFactor", "factorize_hessian", "gptq_codes", "quantize_gptq"]

_MOST_DAMPING = 20.0
"""In means of the diagonal: beyond, little but the diagonal is left."""


@dataclass(frozen=True, slots=True)
class GptqSettings:
    """How GPTQ runs.

    damping        added to the Hessian's diagonal, as a part of its mean;
                   doubled until the Cholesky factorization succeeds, in float64 too
    act_order      visit columns by falling diagonal of the Hessian
    search_grid    choose each grid by the weighted error, not by min and max
    refine         rounds in which codes and scales are improved afterwards
    block_columns  columns after which the update reaches the rest of the row;
                   changes the speed only
    """

    damping: float = 0.01
    act_order: bool = True
    search_grid: bool = True
    refine: int = 0
    block_columns: int = 32

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise InputError("GPTQ damping", found=self.damping, expected="above 0 and at most 1")
        if self.refine < 0:
            raise InputError("GPTQ rounds of refinement", found=self.refine, expected="0 or more")
        if self.block_columns < 1:
            raise InputError("GPTQ block of columns", found=self.block_columns, expected="at least 1")


@dataclass(frozen=True, slots=True, eq=False)
class HessianFactor:
    """`upper^T upper` is the inverse of the damped Hessian, its columns in `order` (int64 [K]).

    `dtype` is the number format that found it.
    """

    order: torch.Tensor
    upper: torch.Tensor
    damping: float
    dtype: torch.dtype = torch.float32


def quantize_gptq(
    weight: torch.Tensor,
    statistics: InputStatistics,
    scheme: QuantScheme,
    settings: GptqSettings | None = None,
    *,
    factor: HessianFactor | None = None,
    name: str = "weight",
) -> QuantizedTensor:
    """A weight, float32 [N, K], in codes whose output error over the calibration inputs is small.

    `factor` spares the factorization to weights that share an input. Raises
    ModelError, naming the linear, if the Hessian or a scale is not finite.
    """
    settings = settings or GptqSettings()
    factor = factor or factorize_hessian(statistics.hessian, settings, name=name)
    importance = statistics.hessian.diagonal()
    grid = searched_grid(weight, scheme, importance) if settings.search_grid else min_max_grid(weight, scheme)
    codes = gptq_codes(weight, grid, factor, settings.block_columns)
    if settings.refine:
        codes, grid = refine(weight, codes, grid, statistics.hessian, factor.damping, settings.refine)
    return quantized_tensor(codes, grid, name)


def factorize_hessian(
    hessian: torch.Tensor, settings: GptqSettings, *, name: str = "weight"
) -> HessianFactor:
    """The factor that GPTQ works with, of `hessian` float32 [K, K].

    Where float32 finds the damped Hessian not positive definite, float64 tries
    again, then with twice the damping and so on. A column that never had an
    input gets the mean of the diagonal: it neither gives nor takes corrections.
    Raises ModelError if no damping up to 20 times that mean helps.
    """
    diagonal = hessian.diagonal()
    mean = float(diagonal.mean())
    if not torch.isfinite(diagonal).all():
        raise ModelError(f"the Hessian of {name} is not finite", found=mean)
    order = torch.argsort(diagonal, descending=True, stable=True)
    order = order if settings.act_order else torch.arange(len(diagonal))
    for damping, dtype in _attempts(settings.damping):
        if (upper := inverse_factor(_damped(hessian, order, damping, dtype))) is not None:
            return HessianFactor(order, upper, damping, dtype)
    raise ModelError(
        f"the Hessian of {name} can't be factorized",
        found=f"not positive definite with damping {damping:g}",
        hint="add calibration samples",
    )


def _attempts(damping: float) -> Iterator[tuple[float, torch.dtype]]:
    """Dampings and number formats in the order they are tried."""
    yield damping, torch.float32
    while damping <= _MOST_DAMPING:
        yield damping, torch.float64
        damping *= 2


def _damped(hessian: torch.Tensor, order: torch.Tensor, damping: float, dtype: torch.dtype) -> torch.Tensor:
    """The damped matrix with its axes in the reverse of `order`, made row by row: it may be large."""
    mean = float(hessian.diagonal().mean()) or 1.0
    backwards = order.flip(0)
    matrix = torch.empty(hessian.shape, dtype=dtype)
    for row, source in zip(matrix, backwards.tolist(), strict=True):
        row.copy_(hessian[source][backwards])
    diagonal = matrix.diagonal()
    diagonal[diagonal == 0] = mean
    diagonal.add_(damping * mean)
    return matrix


def gptq_codes(
    weight: torch.Tensor, grid: Grid, factor: HessianFactor, block_columns: int = 32
) -> torch.Tensor:
    """Codes, float32 [N, K] of whole numbers, by the paper's algorithm 1 with lazy updates."""
    rows, columns = weight.shape
    groups = (factor.order // (columns // grid.scales.shape[1])).tolist()
    work = weight.T[factor.order]  # [K, N]: the weights of a column lie together
    scales, zeros = grid.scales.T.contiguous(), grid.zeros.T.contiguous()
    lowest, highest = -zeros, grid.scheme.max_code - zeros
    codes = torch.empty_like(work)
    errors = torch.empty(min(block_columns, columns), rows)
    for start in range(0, columns, block_columns):
        end = min(start + block_columns, columns)
        upper = factor.upper[start:end, start:end]
        for offset, group in enumerate(groups[start:end]):
            column = start + offset
            code = torch.round(work[column] / scales[group])
            code = torch.minimum(torch.maximum(code, lowest[group]), highest[group])
            codes[column] = code + zeros[group]
            torch.div(work[column] - code * scales[group], upper[offset, offset], out=errors[offset])
            work[column + 1 : end].addr_(upper[offset, offset + 1 :], errors[offset], alpha=-1)
        work[end:].addmm_(factor.upper[start:end, end:].T, errors[: end - start], alpha=-1)
    result = torch.empty_like(weight)
    result.T[factor.order] = codes
    return result
