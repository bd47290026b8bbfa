"""Float8 weights, E4M3: 4 bits of exponent, 3 of mantissa (Micikevicius et al. 2022, arXiv 2209.05433).

The scale of a row, or of a square block, brings its largest weight to 448, the
largest number of the type, or less: steps double at every power of two, and
where the weights lie between two of them decides what they lose. Scales within
an octave are tried, and the one with the least squared rounding error is kept.
They are rounded to their stored type first, so a weight may come out a little
above 448: it is clamped.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from gristmill.pipeline.quantize.grids import finite_scales, grouped, storable_scales
from gristmill.runtime.scheme import FLOAT8_MAX, QuantizedTensor, QuantScheme

__all__ = ["quantize_float8"]

_CHUNK_ELEMENTS = 1 << 18  # rounded at a time: few enough that temporaries stay in the L2 cache
_STRETCHES = tuple(2 ** (step / 8) for step in range(8))
"""Multiples of the scale that just holds the largest weight; at 2 almost the same numbers begin anew."""


def quantize_float8(weight: torch.Tensor, scheme: QuantScheme, *, name: str = "weight") -> QuantizedTensor:
    """`weight`, float32 [N, K], in float8 with one scale a row or block.

    The last block of rows may be cut off. Raises InputError for a block size
    that does not divide K, ModelError, naming the linear, for a scale that is
    not finite.
    """
    values = grouped(weight, scheme)
    blocks = max(1, _CHUNK_ELEMENTS // (scheme.group_rows * weight.shape[1]))
    parts = [_round(chunk, scheme) for chunk in torch.split(values, blocks * scheme.group_rows)]
    scales = finite_scales(torch.cat([scales for _, scales in parts]), scheme, name)
    codes = torch.cat([numbers for numbers, _ in parts]).view(torch.uint8).view_as(weight)
    return QuantizedTensor(scheme, codes.numpy(), scales.numpy())


def _round(values: torch.Tensor, scheme: QuantScheme) -> tuple[torch.Tensor, torch.Tensor]:
    """`values` [N, G, size] over the best of the candidate scales, in float8, and these scales, [N, G]."""
    exact = _over_block_rows(values.abs().amax(-1), scheme.group_rows, torch.amax) / FLOAT8_MAX
    candidates = torch.stack([storable_scales(exact * stretch, scheme) for stretch in _STRETCHES])
    errors = [_over_block_rows(_lost(values, scales), scheme.group_rows, torch.sum) for scales in candidates]
    best = torch.stack(errors).nan_to_num_(nan=torch.inf).argmin(0, keepdim=True)
    scales = candidates.gather(0, best)[0]
    return _nearest(values, scales), scales


def _nearest(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (values / scales[..., None]).clamp_(-FLOAT8_MAX, FLOAT8_MAX).to(torch.float8_e4m3fn)


def _lost(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Squared rounding error of each row of a group."""
    return _nearest(values, scales).float().mul_(scales[..., None]).sub_(values).square_().sum(-1)


def _over_block_rows(
    numbers: torch.Tensor, size: int, combine: Callable[[torch.Tensor, int], torch.Tensor]
) -> torch.Tensor:
    """`numbers` [N, G] of each `size` rows combined, repeated for each of them."""
    rows = numbers.shape[0]
    blocks = F.pad(numbers, (0, 0, 0, -rows % size)).view(-1, size, numbers.shape[1])
    return combine(blocks, 1).repeat_interleave(size, 0)[:rows].contiguous()
