"""The products of linears: bfloat16 where the processor multiplies it, float32 sums everywhere."""

from __future__ import annotations

import functools
import platform

import torch
import torch.nn.functional as F

from gristmill.runtime.machine import processor_flags

__all__ = ["exact_product", "has_bfloat16_units", "product"]

_FEW_ROWS = 64
"""Below, reading the weights takes the time, and widening them would double it."""

_COLUMNS_AT_ONCE = 8192


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`x W^T + b` in the dtype of `x`, [..., N], summed in float32.

    bfloat16 numbers are multiplied as float32 where there are no units for
    them: the same products and sums, rounded once at the end, in a third of
    the time.
    """
    if not _is_widened(x):
        return F.linear(x, weight, bias)
    wide = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return wide.to(x.dtype)


def exact_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x W^T` in float32 of x [rows, K] and a weight [N, K], not rounded to their dtype; no gradients."""
    if x.dtype == torch.float32:
        return F.linear(x, weight)
    if not _is_widened(x):
        # The product is rounded only after it was summed in float32, so subtracting first leaves what
        # the rounding took.
        rounded = F.linear(x, weight)
        remainder = torch.addmm(rounded, x, weight.t(), beta=-1)
        return rounded.float().add_(remainder)
    wide = x.float()
    output = torch.empty(len(x), len(weight))
    parts = zip(torch.split(output, _COLUMNS_AT_ONCE, 1), torch.split(weight, _COLUMNS_AT_ONCE), strict=True)
    for columns, rows in parts:
        torch.mm(wide, rows.float().t(), out=columns)
    return output


def _is_widened(x: torch.Tensor) -> bool:
    return x.dtype == torch.bfloat16 and not has_bfloat16_units() and x.numel() >= _FEW_ROWS * x.shape[-1]


@functools.cache
def has_bfloat16_units() -> bool:
    """Whether the processor multiplies bfloat16 by itself, as far as is known: x86 says so in its flags."""
    if platform.machine() != "x86_64":
        return True
    return not processor_flags().isdisjoint({"avx512_bf16", "amx_bf16"})
