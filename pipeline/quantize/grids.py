"""Quantization grids: the scale and zero point of every group of a weight.

A weight [N, K] is looked at as [N, G, size]. Scales are rounded to the type
they are stored in before anything is measured or any code is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gristmill.runtime.errors import ModelError
from gristmill.runtime.executors.reference.float_codes import float_values
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme

__all__ = [
    "SHRINK_FACTORS",
    "Grid",
    "dequantized",
    "finite_scales",
    "grouped",
    "min_max_grid",
    "nearest_codes",
    "quantized_tensor",
    "searched_grid",
    "storable_scales",
]

SHRINK_FACTORS: tuple[float, ...] = tuple(1 - step / 20 for step in range(10))
"""Parts of the full range, 1 to 0.55, that a search tries."""

_CHUNK_ELEMENTS = 1 << 18
"""Elements searched at a time: few enough that temporaries stay in the L2 cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The values a group can take: `(code - zero) * scale` for codes 0 .. 2^bits - 1.

    scales  float32 [N, G], above zero, each exact in `scheme.scale_dtype`
    zeros   float32 [N, G], whole numbers from 0 to 2^bits - 1
    """

    scheme: QuantScheme
    scales: torch.Tensor
    zeros: torch.Tensor


def grouped(weight: torch.Tensor, scheme: QuantScheme) -> torch.Tensor:
    """`weight` [N, K] as [N, G, size]. Raises InputError if the group size does not divide K."""
    rows, columns = weight.shape
    return weight.view(rows, scheme.num_groups(columns), -1)


def min_max_grid(weight: torch.Tensor, scheme: QuantScheme, shrink: float = 1.0) -> Grid:
    """The grid that spans each group's smallest to largest value, times `shrink`; 0 is always on it.

    Symmetric: scale = 2 max|w| / (2^bits - 1) and zero = 2^(bits-1). `weight`
    is float32 [N, K].
    """
    low, high = _ranges(grouped(weight, scheme), scheme)
    return _range_grid(low * shrink, high * shrink, scheme)


def searched_grid(
    weight: torch.Tensor,
    scheme: QuantScheme,
    importance: torch.Tensor,
    shrink_factors: Sequence[float] = SHRINK_FACTORS,
) -> Grid:
    """For each group the shrunk min-max grid with the least weighted rounding error.

    importance  float32 [K]: weighs each column's squared error (the Hessian's
                diagonal), or float32 [G, size, size]: measures a group's error
                e as e^T M e (the Hessian's diagonal blocks)
    """
    values = grouped(weight, scheme)
    _, groups, size = values.shape
    error = (
        _block_error(importance) if importance.dim() == 3 else _diagonal_error(importance.view(groups, size))
    )
    rows = max(1, _CHUNK_ELEMENTS // (groups * size))
    parts = [_search(chunk, scheme, error, shrink_factors) for chunk in torch.split(values, rows)]
    return Grid(scheme, torch.cat([part.scales for part in parts]), torch.cat([part.zeros for part in parts]))


def nearest_codes(weight: torch.Tensor, grid: Grid) -> torch.Tensor:
    """The code nearest to each weight, float32 [N, K] of whole numbers."""
    values = grouped(weight, grid.scheme)
    codes = (values / grid.scales[..., None]).round_().add_(grid.zeros[..., None])
    return codes.clamp_(0, grid.scheme.max_code).view_as(weight)


def quantized_tensor(codes: torch.Tensor, grid: Grid, name: str) -> QuantizedTensor:
    """Codes and their grid in the form they are stored in.

    Raises ModelError, naming the linear, if a scale is not a positive finite number.
    """
    scales = finite_scales(grid.scales, grid.scheme, name)
    zeros = None if grid.scheme.symmetric else grid.zeros.numpy().astype(np.uint8)
    return QuantizedTensor(grid.scheme, codes.numpy().astype(np.uint8), scales.numpy(), zeros)


def finite_scales(scales: torch.Tensor, scheme: QuantScheme, name: str) -> torch.Tensor:
    """`scales` themselves. Raises ModelError, naming the linear, if one is not a positive finite number."""
    if not (torch.isfinite(scales) & (scales > 0)).all():
        raise ModelError(
            f"a scale of {name} can't be stored as {scheme.scale_dtype}",
            found=float(scales.max()),
            hint="choose bfloat16 or float32 scales",
        )
    return scales


def dequantized(tensor: QuantizedTensor, dtype: torch.dtype) -> torch.Tensor:
    """The weight [N, K] that the codes mean, in `dtype`; what every executor computes with.

    Groups must be runs of consecutive columns (`group_index` None).
    """
    assert tensor.group_index is None
    if tensor.scheme.type == "float":
        values = grouped(float_values(torch.from_numpy(tensor.codes), tensor.scheme.bits), tensor.scheme)
        return values.mul_(torch.from_numpy(tensor.scales)[..., None]).view(tensor.shape).to(dtype)
    codes = grouped(torch.from_numpy(tensor.codes).float(), tensor.scheme)
    zeros: float | torch.Tensor = float(tensor.scheme.midpoint)
    if tensor.zero_points is not None:
        zeros = torch.from_numpy(tensor.zero_points).float()[..., None]
    return codes.sub_(zeros).mul_(torch.from_numpy(tensor.scales)[..., None]).view(tensor.shape).to(dtype)


def _ranges(values: torch.Tensor, scheme: QuantScheme) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest value [N, G] that each group's grid has to hold."""
    if scheme.symmetric:
        size = values.abs().amax(-1)
        return -size, size
    return values.amin(-1).clamp_(max=0), values.amax(-1).clamp_(min=0)


def _range_grid(low: torch.Tensor, high: torch.Tensor, scheme: QuantScheme) -> Grid:
    scales = storable_scales((high - low) / scheme.max_code, scheme)
    if scheme.symmetric:
        return Grid(scheme, scales, torch.full_like(scales, scheme.midpoint))
    return Grid(scheme, scales, (-low / scales).round_().clamp_(0, scheme.max_code))


def storable_scales(scales: torch.Tensor, scheme: QuantScheme) -> torch.Tensor:
    """`scales` rounded to their stored type; 1 for a group of zeros, whose codes are then its zero point."""
    dtype: torch.dtype = getattr(torch, scheme.scale_dtype)
    rounded = scales.to(dtype).float()
    rounded[(rounded == 0) & (scales > 0)] = torch.finfo(dtype).smallest_normal
    return rounded.masked_fill_(scales == 0, 1.0)


GroupError = Callable[[torch.Tensor], torch.Tensor]
"""Rounding errors [N, G, size], which may be overwritten, to one number a group [N, G]."""


def _diagonal_error(importance: torch.Tensor) -> GroupError:
    return lambda errors: errors.square_().mul_(importance).sum(-1)


def _block_error(blocks: torch.Tensor) -> GroupError:
    def measure(errors: torch.Tensor) -> torch.Tensor:
        by_group = errors.transpose(0, 1)
        return ((by_group @ blocks) * by_group).sum(-1).T

    return measure


def _search(
    values: torch.Tensor, scheme: QuantScheme, error: GroupError, shrink_factors: Sequence[float]
) -> Grid:
    low, high = _ranges(values, scheme)
    best = _range_grid(low * shrink_factors[0], high * shrink_factors[0], scheme)
    scales, zeros = best.scales, best.zeros
    least = error(_rounding_errors(values, best))
    for shrink in shrink_factors[1:]:
        grid = _range_grid(low * shrink, high * shrink, scheme)
        errors = error(_rounding_errors(values, grid))
        better = errors < least
        least = torch.where(better, errors, least)
        scales = torch.where(better, grid.scales, scales)
        zeros = torch.where(better, grid.zeros, zeros)
    return Grid(scheme, scales, zeros)


def _rounding_errors(values: torch.Tensor, grid: Grid) -> torch.Tensor:
    scales, zeros = grid.scales[..., None], grid.zeros[..., None]
    rounded = (values / scales).round_().clamp_(-zeros, grid.scheme.max_code - zeros)
    return rounded.mul_(scales).sub_(values)
