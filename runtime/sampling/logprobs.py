"""Log probabilities of rows of logits, for answers that report them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import InternalError
from gristmill.runtime.kernels import _native

__all__ = ["TokenLogprobs", "not_finite", "token_logprobs"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The token at one position, its log probability, and the k best there as (token id, logprob)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits: NDArray[np.float32], token_ids: Sequence[int], count: int) -> list[TokenLogprobs]:
    """For each of the first rows [row, vocab] the log probability of its token and of the `count` best ones.

    Best first, ties by id; within 1e-5 of exact ones. Raises InternalError for logits that are not finite.
    """
    reports = _native.logprobs_of_rows(logits, token_ids, count)
    if not all(report.finite for report in reports):
        raise not_finite()
    return [
        TokenLogprobs(token_id, report.logprob, report.top)
        for token_id, report in zip(token_ids, reports, strict=True)
    ]


def not_finite(found: float | None = None) -> InternalError:
    """The error for logits that are not numbers or not bounded."""
    return InternalError("the model's logits are not finite", found=found, hint="the weights may be damaged")
