"""Observers: what a group of linears reads, gathered batch by batch.

An observer is handed the rows of real tokens only, so its result depends on
the tokens and neither on how they were batched and padded nor (up to float32
rounding) on their order.
"""

from __future__ import annotations

import torch

from gristmill.calibration.products import average_lower_products, average_products, mirror_lower
from gristmill.calibration.statistics import InputStatistics
from gristmill.runtime.errors import InternalError, ModelError
from gristmill.runtime.model_plan import LinearPlan

__all__ = ["InputObserver", "group_name", "group_names", "require_finite"]

_NAMED = 3


class InputObserver:
    """Running statistics of the input x that the linears called `name` read.

    A batch may bring a second tensor, the gap, of `gap_features` columns: the
    means of `gap x^T` and `x x^T` over such batches are kept too. Of the rows
    themselves, every `keep_every`-th is kept; none if it is 0.
    """

    def __init__(self, name: str, features: int, gap_features: int = 0, keep_every: int = 0) -> None:
        self._name = name
        self._plain = _Moments(features, 0)
        self._gapped = _Moments(features, gap_features)
        self._abs_sum = torch.zeros(features, dtype=torch.float64)
        self._abs_max = torch.zeros(features)
        self._keep_every = keep_every
        self._rows: list[torch.Tensor] = []

    def update(self, rows: torch.Tensor, gap: torch.Tensor | None = None) -> None:
        """Take in `rows` [T, K] and with them `gap`, float32 [T, M].

        For bfloat16 rows the gap too is multiplied as bfloat16: that rounding is
        far below its sampling error. Raises ModelError if a row is NaN or infinite.
        """
        if not len(rows):
            return
        wide = rows.to(torch.float32, copy=True)
        if self._keep_every:
            seen = self._plain.tokens + self._gapped.tokens
            self._rows.append(wide[-seen % self._keep_every :: self._keep_every].clone())
        moments = self._plain if gap is None else self._gapped
        moments.update(wide, gap, narrow=rows.dtype == torch.bfloat16)
        sizes = wide.abs_()
        abs_max = sizes.amax(0)
        require_finite(abs_max, f"the input of {self._name}")
        self._abs_sum += torch.mv(sizes.T, torch.ones(len(rows)))
        torch.maximum(self._abs_max, abs_max, out=self._abs_max)

    def statistics(self) -> InputStatistics:
        """The statistics of all rows. Asked for once, as the last thing: sums are given away, not copied."""
        plain, gapped = self._plain, self._gapped
        tokens = plain.tokens + gapped.tokens
        if tokens == 0:
            raise InternalError(f"no token has reached {self._name}")
        hessian = plain.hessian()
        if gapped.tokens:
            hessian.mul_(plain.tokens / tokens).add_(gapped.hessian(), alpha=gapped.tokens / tokens)
        require_finite(hessian.diagonal(), f"the second moment of the input of {self._name}")
        rows = torch.cat(self._rows) if self._rows else None
        return InputStatistics(tokens, hessian, (self._abs_sum / tokens).float(), self._abs_max, rows)

    def gap_moments(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The means of `x x^T` [K, K] and `gap x^T` [M, K], not copies; None if no batch brought a gap.

        Raises ModelError if the gap is not finite.
        """
        if self._gapped.tokens == 0:
            return None
        require_finite(self._gapped.gap, f"the drift of the input of {self._name}")
        return self._gapped.hessian(), self._gapped.gap


class _Moments:
    """Running means over `tokens` rows; of the symmetric one, only the lower half is kept up."""

    def __init__(self, features: int, gap_features: int) -> None:
        self.tokens = 0
        self.gap = torch.zeros(gap_features, features)
        self._lower = torch.zeros(features, features)

    def update(self, rows: torch.Tensor, gap: torch.Tensor | None, *, narrow: bool) -> None:
        average_lower_products(self._lower, rows, self.tokens, narrow=narrow)
        if gap is not None:
            average_products(self.gap, gap, rows, self.tokens, narrow=narrow)
        self.tokens += len(rows)

    def hessian(self) -> torch.Tensor:
        mirror_lower(self._lower)
        return self._lower


def group_names(group: tuple[LinearPlan, ...]) -> tuple[str, ...]:
    """The names of a group's linears, the group's key in every mapping."""
    return tuple(linear.name for linear in group)


def group_name(group: tuple[LinearPlan, ...]) -> str:
    """A group's linears in one phrase, for messages: of many the first and the last."""
    names = group_names(group)
    return ", ".join(names) if len(names) <= _NAMED else f"{names[0]} to {names[-1]}"


def require_finite(values: torch.Tensor, what: str) -> None:
    """Raise ModelError, naming `what`, if any value is NaN or infinite."""
    low, high = torch.aminmax(values)
    if torch.isfinite(low) and torch.isfinite(high):
        return
    first = tuple((~torch.isfinite(values)).nonzero()[0].tolist())
    raise ModelError(
        f"{what} is not finite",
        found=f"{float(values[first])} at channel {first[-1]}",
        hint="the weights are damaged, or activations overflow: compute in float32",
    )
