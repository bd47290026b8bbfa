"""Refine codes and scales in turns: each is the best there is while the other stays.

Both lower the output error tr(E H E^T) + lambda |E|^2 that GPTQ found, where E
is the rounding error of a weight and H the Hessian. Codes are visited column by
column as in QuantEase (Behdin et al. 2023, arXiv 2309.01885, equation 7); scales
are the least squares solution of each row. Neither can raise the error, but for
the rounding of scales to the type they are stored in.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gristmill.pipeline.quantize.grids import Grid, grouped, storable_scales

__all__ = ["descend_codes", "refine", "refit_scales"]

_CHUNK_ELEMENTS = 1 << 20
"""Weights refined at a time, whole rows of them: temporaries stay small beside the model."""

_BLOCK_COLUMNS = 32


def refine(
    weight: torch.Tensor, codes: torch.Tensor, grid: Grid, hessian: torch.Tensor, damping: float, rounds: int
) -> tuple[torch.Tensor, Grid]:
    """`codes` and `grid` of `weight`, all [N, K], after so many rounds.

    `damping` is lambda as a part of the Hessian's mean diagonal.
    """
    ridge = damping * (float(hessian.diagonal().mean()) or 1.0)
    rows = max(1, _CHUNK_ELEMENTS // weight.shape[1])
    codes, scales = codes.clone(), grid.scales.clone()
    for start in range(0, len(weight), rows):
        part = slice(start, start + rows)
        own = Grid(grid.scheme, grid.scales[part], grid.zeros[part])
        for _ in range(rounds):
            codes[part] = descend_codes(weight[part], codes[part], own, hessian, ridge)
            own = refit_scales(weight[part], codes[part], own, hessian, ridge)
        scales[part] = own.scales
    return codes, replace(grid, scales=scales)


def descend_codes(
    weight: torch.Tensor, codes: torch.Tensor, grid: Grid, hessian: torch.Tensor, ridge: float
) -> torch.Tensor:
    """Every code once, in the order of columns, as the best for all others as they are then."""
    columns = weight.shape[1]
    size = columns // grid.scales.shape[1]
    scales, lowest = grid.scales.T.contiguous(), -grid.zeros.T.contiguous()  # [G, N]
    highest = lowest + grid.scheme.max_code
    levels = (grouped(codes, grid.scheme) - grid.zeros[..., None]).view_as(codes).T.contiguous()  # [K, N]
    errors = (levels.view(len(scales), size, -1) * scales[:, None]).view_as(levels).sub_(weight.T)
    slopes = (hessian @ errors).add_(errors, alpha=ridge)
    curvatures = (hessian.diagonal() + ridge).tolist()
    changes = torch.empty(min(_BLOCK_COLUMNS, columns), len(weight))
    for start in range(0, columns, _BLOCK_COLUMNS):
        end = min(start + _BLOCK_COLUMNS, columns)
        for change, column in zip(changes, range(start, end), strict=False):
            group, level = column // size, levels[column]
            wanted = torch.div(slopes[column], scales[group]).mul_(-1 / curvatures[column]).add_(level)
            wanted.round_().clamp_(lowest[group], highest[group])
            torch.sub(wanted, level, out=change).mul_(scales[group])
            level.copy_(wanted)
            slopes[column + 1 : end].addr_(hessian[column, column + 1 : end], change)
        slopes[end:].addmm_(hessian[start:end, end:].T, changes[: end - start])
    return (grouped(levels.T.contiguous(), grid.scheme) + grid.zeros[..., None]).view_as(codes)


def refit_scales(
    weight: torch.Tensor, codes: torch.Tensor, grid: Grid, hessian: torch.Tensor, ridge: float
) -> Grid:
    """`grid` with the best scales for `codes`: linear equations in as many unknowns as a row has groups.

    No scale changes by more than a factor of two; a row without a solution keeps its own.
    """
    levels = grouped(codes, grid.scheme) - grid.zeros[..., None]
    rows, groups, size = levels.shape
    products = torch.empty(rows, groups, groups)
    wanted = torch.empty(rows, groups)
    for group in range(groups):
        columns = slice(group * size, (group + 1) * size)
        seen = levels[:, group] @ hessian[columns]  # [N, K]
        seen[:, columns] += ridge * levels[:, group]
        products[:, group] = (seen.view_as(levels) * levels).sum(-1)
        wanted[:, group] = (seen * weight).sum(-1)
    missing = wanted - (products @ grid.scales[..., None])[..., 0]
    products.diagonal(dim1=1, dim2=2).add_(torch.finfo(torch.float32).tiny)  # groups of zeros
    change, _ = torch.linalg.solve_ex(products, missing)
    scales = grid.scales + torch.where(torch.isfinite(change), change, 0)
    scales = torch.minimum(torch.maximum(scales, 0.5 * grid.scales), 2 * grid.scales)
    return replace(grid, scales=storable_scales(scales, grid.scheme))
