"""Observers: what a group of linears reads, gathered batch by batch.

An observer is handed the rows of real tokens only, so its result depends on
the tokens and neither on how they were batched and padded nor (up to float32
rounding) on their order.
"""

from __future__ import annotations

import torch

from gristmill.calibration.products import average_products
from gristmill.calibration.statistics import InputStatistics
from gristmill.runtime.errors import InternalError, ModelError

__all__ = ["CrossObserver", "InputObserver", "require_finite"]


class InputObserver:
    """Running statistics of the input that the linears called `name` read."""

    def __init__(self, name: str, features: int) -> None:
        self._name = name
        self._tokens = 0
        self._hessian = torch.zeros(features, features)
        self._abs_mean = torch.zeros(features)
        self._abs_max = torch.zeros(features)

    def update(self, rows: torch.Tensor) -> None:
        """Take in `rows` [T, K]. Raises ModelError if a value is NaN or infinite."""
        count = rows.shape[0]
        if count == 0:
            return
        sizes = rows.abs()
        abs_max = sizes.amax(0).float()
        require_finite(abs_max, f"the input of {self._name}")
        wide = rows.float()
        average_products(self._hessian, wide, wide, self._tokens, narrow=rows.dtype == torch.bfloat16)
        self._tokens += count
        abs_mean = sizes.mean(0, dtype=torch.float32)
        self._abs_mean += (abs_mean - self._abs_mean) * (count / self._tokens)
        torch.maximum(self._abs_max, abs_max, out=self._abs_max)

    def statistics(self) -> InputStatistics:
        """The statistics of all rows so far; the observer is used up."""
        if self._tokens == 0:
            raise InternalError(f"no token has reached {self._name}")
        require_finite(self._hessian.diagonal(), f"the second moment of the input of {self._name}")
        return InputStatistics(self._tokens, self._hessian, self._abs_mean, self._abs_max)


class CrossObserver:
    """Running mean of `left right^T` over the rows of two tensors."""

    def __init__(self, name: str, left_features: int, right_features: int) -> None:
        self._name = name
        self._rows = 0
        self._product = torch.zeros(left_features, right_features)

    def update(self, left: torch.Tensor, right: torch.Tensor) -> None:
        """Take in `left` [T, M], float32, and `right` [T, K].

        A bfloat16 `right` makes the products bfloat16 too: `left` is a small
        difference whose own rounding error is far below its sampling error.
        """
        narrow = right.dtype == torch.bfloat16
        if left.shape[0]:
            average_products(self._product, left, right.float(), self._rows, narrow=narrow)
        self._rows += left.shape[0]

    def mean(self) -> torch.Tensor:
        """The mean [M, K] over all rows so far. Raises ModelError if it is not finite."""
        require_finite(self._product, f"the drift of the input of {self._name}")
        return self._product


def require_finite(values: torch.Tensor, what: str) -> None:
    """Raise ModelError, naming `what`, if any value is NaN or infinite."""
    finite = torch.isfinite(values)
    if finite.all():
        return
    first = tuple((~finite).nonzero()[0].tolist())
    raise ModelError(
        f"{what} is not finite",
        found=f"{float(values[first])} at channel {first[-1]}",
        hint="the weights are damaged, or activations overflow: compute in float32",
    )
