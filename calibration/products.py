"""Products of activations: float32 sums that are exact for bfloat16 inputs, on the fastest unit there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["average_products"]


def average_products(
    average: torch.Tensor, left: torch.Tensor, right: torch.Tensor, seen: int, *, narrow: bool
) -> None:
    """Add the rows of two batches to a running mean of `left_row right_row^T`, in place.

    average  float32 [M, K], the mean over `seen` earlier rows
    left     float32 [T, M]
    right    float32 [T, K]

    With `narrow`, factors may be rounded to bfloat16 before they are
    multiplied (no loss where they came from there); sums are float32 always.
    """
    rows = left.shape[0]
    decay, weight = seen / (seen + rows), 1.0 / (seen + rows)
    with _bfloat16_factors(narrow):
        average.addmm_(left.T, right, beta=decay, alpha=weight)


@contextmanager
def _bfloat16_factors(narrow: bool) -> Iterator[None]:
    """Let float32 products use bfloat16 units (AMX, AVX512-BF16), four times as fast where they exist.

    torch has no bfloat16 product with a float32 result on CPUs, only this
    process-wide switch: it is put back before anything else runs.
    """
    switch: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if not narrow or switch is None:
        yield
        return
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    try:
        yield
    finally:
        switch.fp32_precision = before
