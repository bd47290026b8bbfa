"""Float4 weights, E2M1, in groups that share a scale of 8 bits: NVFP4 and MXFP4.

MXFP4 (Open Compute Project, Microscaling Formats v1.0, 2023): groups of 32,
scales are powers of two. NVFP4: groups of 16, scales are float8 (E4M3) under
one global scale for the whole weight, which brings them into their range; here
that is a power of two, so that no product of a weight is rounded.

The scale that brings a group's largest weight to 6, the largest number of the
type, is not always the best: the steps from 4 to 6 are wide. A few about it are
tried, and each group keeps the one with the least squared rounding error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from gristmill.pipeline.quantize.grids import finite_scales, grouped
from gristmill.runtime.errors import ModelError
from gristmill.runtime.scheme import FLOAT8_MAX, QuantizedTensor, QuantScheme

__all__ = ["FLOAT4_MAX", "quantize_float4"]

FLOAT4_MAX = 6.0
_SCALE_MIN = 2.0**-9  # of float8
_MAX_EXPONENT = 126  # of a global scale that float32 holds, as its inverse
_CHUNK_ELEMENTS = 1 << 18  # rounded at a time: few enough that temporaries stay in the L2 cache
_STRETCHES = (1.0, 1.5, 1.25, 0.875)
"""Multiples of the scale that just holds the largest weight: 1.5 brings it to 4."""


def quantize_float4(weight: torch.Tensor, scheme: QuantScheme, *, name: str = "weight") -> QuantizedTensor:
    """`weight`, float32 [N, K], to the nearest values of the format.

    Linears that are rounded as one weight share their global scale, as fused
    kernels want it. Raises InputError for a K that groups do not divide,
    ModelError, naming the linear, for a weight that is not finite.
    """
    values = grouped(weight, scheme)
    largest = float(weight.abs().max())
    if not math.isfinite(largest):
        raise ModelError(f"a weight of {name} is not finite")
    global_scale = _global_scale(largest) if scheme.has_global_scale else None
    rows = max(1, _CHUNK_ELEMENTS // weight.shape[1])
    parts = [_round(chunk, global_scale) for chunk in torch.split(values, rows)]
    codes = torch.cat([codes for codes, _ in parts]).view_as(weight)
    scales = finite_scales(torch.cat([scales for _, scales in parts]), scheme, name)
    return QuantizedTensor(scheme, codes.numpy(), scales.numpy(), global_scale=global_scale)


def _round(values: torch.Tensor, global_scale: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of `values` [N, G, size] and the best of the candidate scales, [N, G]."""
    candidates = torch.stack(list(_candidates(values.abs().amax(-1) / FLOAT4_MAX, global_scale)))
    errors = torch.stack([_lost(values, scales) for scales in candidates])
    scales = candidates.gather(0, errors.argmin(0, keepdim=True))[0]
    return _codes(_nearest(values, scales)), scales


def _global_scale(largest: float) -> float:
    """The largest power of two that leaves every candidate scale in the range of float8."""
    if largest == 0:
        return 1.0
    exponent = math.floor(math.log2(FLOAT8_MAX * FLOAT4_MAX / (largest * max(_STRETCHES))))
    return 2.0 ** min(exponent, _MAX_EXPONENT)


def _candidates(exact: torch.Tensor, global_scale: float | None) -> Iterator[torch.Tensor]:
    """Storable scales near `exact` [N, G]; any will do for a group of zeros."""
    exact = exact.masked_fill(exact == 0, 1.0 if global_scale is None else 1.0 / global_scale)
    if global_scale is None:
        smaller = (exact / torch.frexp(exact).mantissa).div_(2).clamp_(2.0**-127, 2.0**126)
        yield from (smaller, 2 * smaller)
        return
    for stretch in _STRETCHES:
        stored = (exact * (stretch * global_scale)).clamp_(_SCALE_MIN, FLOAT8_MAX)
        yield stored.to(torch.float8_e4m3fn).float().div_(global_scale)


def _lost(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Squared rounding error of each group."""
    return _nearest(values, scales).mul_(scales[..., None]).sub_(values).square_().sum(-1)


def _nearest(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The float4 numbers nearest to `values` [N, G, size] over their scales, ties to even.

    What lies beyond the largest is clamped. Numbers are 0.5 apart below 2, 1 below 4, and 2 above.
    """
    steps = values / scales[..., None]
    sizes = steps.abs().clamp_(max=FLOAT4_MAX)
    apart = torch.full_like(sizes, 0.5).add_(sizes >= 2, alpha=0.5).add_(sizes >= 4)
    return sizes.div_(apart).round_().mul_(apart).copysign_(steps)


def _codes(numbers: torch.Tensor) -> torch.Tensor:
    """The bits of float4 numbers: the sign, then the place among those of one sign."""
    sizes = numbers.abs()
    places = torch.where(sizes < 2, 2 * sizes, torch.where(sizes < 4, sizes + 2, sizes / 2 + 4))
    return places.to(torch.uint8).add_(torch.signbit(numbers), alpha=8)
