"""How far a quantized model is from the original: losses, KL divergence and top-1 agreement by position.

Logits of a whole data set never exist at once. `compare_rows` turns two chunks
of logits into a few numbers a position; `summarize` turns those into metrics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gristmill.runtime.errors import CheckError

__all__ = ["Metrics", "PositionMetrics", "compare_rows", "concatenate", "summarize"]

_ROWS_AT_ONCE = 128
_LARGEST_LOSS = 700.0
"""exp of more is no float64; a model this broken fails every gate all the same."""


@dataclass(frozen=True, slots=True, eq=False)
class PositionMetrics:
    """One value a position, all of length n.

    base_loss, loss  float64, -ln p(next token) of the original and the quantized model; NaN without one
    kl               float64, KL(original || quantized) over the vocabulary, in nats
    base_top, top    int64, the token that the original and the quantized model find most likely
    """

    base_loss: NDArray[np.float64]
    loss: NDArray[np.float64]
    kl: NDArray[np.float64]
    base_top: NDArray[np.int64]
    top: NDArray[np.int64]

    @property
    def agrees(self) -> NDArray[np.bool_]:
        """Whether both find the same token most likely."""
        same: NDArray[np.bool_] = self.base_top == self.top
        return same


@dataclass(frozen=True, slots=True)
class Metrics:
    """What the gates are held against. Divergence and agreement cover all `positions`;
    perplexity covers those with a next token in their window, so a window's first token is not predicted.
    """

    positions: int
    perplexity_base: float
    perplexity: float
    kl_mean: float
    kl_p99: float
    top1_agreement: float

    @property
    def perplexity_increase(self) -> float:
        """Relative to the original: 0.25 is 25 % more."""
        return self.perplexity / self.perplexity_base - 1.0

    def value(self, metric: str) -> float:
        """A metric by the name that gates use."""
        return float(getattr(self, metric))


def compare_rows(
    base: NDArray[np.float32],
    candidate: NDArray[np.float32],
    targets: NDArray[np.int64],
    *,
    name: str = "the data",
    first: int = 0,
) -> PositionMetrics:
    """Compare two chunks of logits [n, vocab] row by row; `targets` [n] are next tokens, -1 for none.

    Log-probabilities are float32, sums over the vocabulary float64. Raises
    CheckError for the first row whose logits are not finite, counting from
    position `first` of `name`.
    """
    parts = []
    for start in range(0, len(base), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        log_p, log_q = _log_softmax(base[rows]), _log_softmax(candidate[rows])
        kl = (log_p.exp() * (log_p - log_q)).sum(-1, dtype=torch.float64)
        if len(bad := torch.nonzero(~torch.isfinite(kl))[:, 0]):
            row = start + int(bad[0])
            raise _not_finite(base[row], candidate[row], f"position {first + row} of {name}")
        parts.append(
            PositionMetrics(
                base_loss=_losses(log_p, targets[rows]),
                loss=_losses(log_q, targets[rows]),
                kl=kl.numpy(),
                base_top=base[rows].argmax(-1),
                top=candidate[rows].argmax(-1),
            )
        )
    return concatenate(parts)


def concatenate(parts: Sequence[PositionMetrics]) -> PositionMetrics:
    """The positions of all `parts`, in order."""
    return PositionMetrics(
        np.concatenate([part.base_loss for part in parts]),
        np.concatenate([part.loss for part in parts]),
        np.concatenate([part.kl for part in parts]),
        np.concatenate([part.base_top for part in parts]),
        np.concatenate([part.top for part in parts]),
    )


def summarize(positions: PositionMetrics) -> Metrics:
    """Metrics over `positions`, of which at least one must have a next token."""
    predicted = ~np.isnan(positions.loss)
    return Metrics(
        positions=len(positions.kl),
        perplexity_base=_perplexity(positions.base_loss[predicted]),
        perplexity=_perplexity(positions.loss[predicted]),
        kl_mean=float(positions.kl.mean()),
        kl_p99=float(np.quantile(positions.kl, 0.99)),
        top1_agreement=float(positions.agrees.mean()),
    )


def _perplexity(losses: NDArray[np.float64]) -> float:
    return math.exp(min(float(losses.mean()), _LARGEST_LOSS))


def _log_softmax(logits: NDArray[np.float32]) -> torch.Tensor:
    return torch.log_softmax(torch.tensor(logits), dim=-1)  # an engine lends its logits read-only


def _losses(log_probabilities: torch.Tensor, targets: NDArray[np.int64]) -> NDArray[np.float64]:
    """-ln p of each target, NaN where it is -1."""
    chosen = torch.from_numpy(targets.clip(min=0))[:, None]
    losses = -log_probabilities.gather(-1, chosen)[:, 0].double()
    return losses.masked_fill(torch.from_numpy(targets < 0), math.nan).numpy()


def _not_finite(base: NDArray[np.float32], candidate: NDArray[np.float32], place: str) -> CheckError:
    owner, row = ("quantized", candidate) if np.isfinite(base).all() else ("original", base)
    return CheckError(
        f"validation: logits of the {owner} model at {place}",
        found=f"{int((~np.isfinite(row)).sum())} of {len(row)} not finite",
        expected="finite numbers",
    )
