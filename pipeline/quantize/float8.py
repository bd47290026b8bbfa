"""Float8 weights, E4M3: 4 bits of exponent, 3 of mantissa (Micikevicius et al. 2022, arXiv 2209.05433).

The scale of a row, or of a square block, brings its largest weight to 448, the
largest number of the type. It is rounded to its stored type first, so a weight
may come out a little above 448: it is clamped.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from gristmill.pipeline.quantize.grids import finite_scales, grouped, storable_scales
from gristmill.runtime.scheme import FLOAT8_MAX, QuantizedTensor, QuantScheme

__all__ = ["quantize_float8"]


def quantize_float8(weight: torch.Tensor, scheme: QuantScheme, *, name: str = "weight") -> QuantizedTensor:
    """`weight`, float32 [N, K], in float8 with one scale a row or block.

    The last block of rows may be cut off. Raises InputError for a block size
    that does not divide K, ModelError, naming the linear, for a scale that is
    not finite.
    """
    values = grouped(weight, scheme)
    largest = _over_block_rows(values.abs().amax(-1), scheme.group_rows)
    scales = finite_scales(storable_scales(largest / FLOAT8_MAX, scheme), scheme, name)
    codes = (values / scales[..., None]).clamp_(-FLOAT8_MAX, FLOAT8_MAX).to(torch.float8_e4m3fn)
    return QuantizedTensor(scheme, codes.view(torch.uint8).view_as(weight).numpy(), scales.numpy())


def _over_block_rows(largest: torch.Tensor, size: int) -> torch.Tensor:
    """The largest of each `size` rows of `largest` [N, G], repeated for each of them."""
    rows = largest.shape[0]
    blocks = F.pad(largest, (0, 0, 0, -rows % size)).view(-1, size, largest.shape[1])
    return blocks.amax(1).repeat_interleave(size, 0)[:rows].contiguous()
