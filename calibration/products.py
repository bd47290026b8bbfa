"""Products of activations: float32 sums, exact for bfloat16 inputs, on the fastest unit there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gristmill.runtime.executors.reference.products import has_bfloat16_units

__all__ = ["average_lower_products", "average_products", "mirror_lower"]

_PANEL = 512


def average_products(
    average: torch.Tensor, left: torch.Tensor, right: torch.Tensor, seen: int, *, narrow: bool
) -> None:
    """Take the rows of two batches into a running mean of `left_row right_row^T`, in place.

    average  float32 [M, K], the mean over `seen` earlier rows
    left     float32 [T, M]
    right    float32 [T, K]

    With `narrow`, factors may be rounded to bfloat16 before they are
    multiplied (no loss where they came from there); sums are always float32.
    """
    rows = left.shape[0]
    with _bfloat16_factors(narrow):
        average.addmm_(left.T, right, beta=seen / (seen + rows), alpha=1 / (seen + rows))


def average_lower_products(average: torch.Tensor, values: torch.Tensor, seen: int, *, narrow: bool) -> None:
    """As `average_products` of `values` [T, K] with itself, but only on and below the diagonal.

    What stands above it is of no meaning; a third of the work is saved.
    """
    for start in range(0, values.shape[1], _PANEL):
        panel = slice(start, start + _PANEL)
        average_products(
            average[panel, : panel.stop], values[:, panel], values[:, : panel.stop], seen, narrow=narrow
        )


def mirror_lower(matrix: torch.Tensor) -> None:
    """Make `matrix` [K, K] symmetric in place: what stands below its diagonal is copied above it."""
    for start in range(0, len(matrix), _PANEL):
        panel = slice(start, start + _PANEL)
        square = matrix[panel, panel]
        square.copy_(square.tril() + square.tril(-1).T)
        matrix[panel, panel.stop :] = matrix[panel.stop :, panel].T


@contextmanager
def _bfloat16_factors(narrow: bool) -> Iterator[None]:
    """Let float32 products use bfloat16 units (AMX, AVX512-BF16) where they exist: about three times as fast.

    torch has no bfloat16 product with a float32 result on CPUs, only this
    process-wide switch: it is put back before anything else runs.
    """
    switch: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if not narrow or switch is None or not has_bfloat16_units():
        yield
        return
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    try:
        yield
    finally:
        switch.fp32_precision = before
