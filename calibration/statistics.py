"""What calibration knows about the input of a group of linears."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["InputStatistics"]


@dataclass(frozen=True, slots=True, eq=False)
class InputStatistics:
    """Sums over `tokens` input rows x in R^K, padding excluded.

    hessian   float32 [K, K], mean of x x^T (GPTQ's H without its factor 2)
    abs_mean  float32 [K], mean of |x|
    abs_max   float32 [K], maximum of |x|
    rows      float32 [R, K], some of the rows, evenly spread; None where none were kept
    """

    tokens: int
    hessian: torch.Tensor
    abs_mean: torch.Tensor
    abs_max: torch.Tensor
    rows: torch.Tensor | None = None
