"""Log probabilities of a row of logits, for answers that report them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["TokenLogprobs", "token_logprobs"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The token at one position, its log probability, and the k best there as (token id, logprob)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits: NDArray[np.float32], token_id: int, count: int) -> TokenLogprobs:
    """The log probability of `token_id` and of the `count` most probable tokens, best first, ties by id."""
    row = logits.astype(np.float64)
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    best = tuple((int(i), float(row[i])) for i in _best(row, count))
    return TokenLogprobs(token_id, float(row[token_id]), best)


def _best(row: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    if count == 0:
        return np.empty(0, np.intp)
    count = min(count, row.size)
    threshold = np.partition(row, row.size - count)[row.size - count]
    candidates = np.flatnonzero(row >= threshold)
    return candidates[np.argsort(-row[candidates], kind="stable")][:count]
