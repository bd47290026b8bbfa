"""Choose the next tokens of a step: one native call for all rows of logits.

A row's result can't depend on the other requests of the batch, to the bit.
Allowed tokens, bad words, minimum length, logit bias and penalties change the
logits in this order; temperature, min-p, top-k and top-p then each work on
what the last one left, as in vLLM. Ties go to the lowest token id. Weights are
float32, so that two tokens whose probabilities differ by less than about 1e-6
of themselves may change places at the edge of a nucleus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import GristmillError, RequestError
from gristmill.runtime.kernels import _native
from gristmill.runtime.sampling.logprobs import TokenLogprobs, not_finite
from gristmill.runtime.sampling.state import SamplerState

__all__ = ["RowSampler", "SampledToken", "sample_rows"]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The chosen token, with its log probabilities if the request asks for them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


@runtime_checkable
class RowSampler(Protocol):
    """What an executor has beside `Executor` if it lends its threads to sampling."""

    def sample_rows(
        self, logits: NDArray[np.float32], rows: Sequence[int], states: Sequence[SamplerState]
    ) -> list[_native.Choice]: ...


def sample_rows(
    logits: NDArray[np.float32],
    rows: Sequence[int],
    states: Sequence[SamplerState],
    sampler: RowSampler | None = None,
) -> list[SampledToken | GristmillError]:
    """Choose a token for each of `rows` of logits [row, vocab] and record it in the row's state.

    By the threads of `sampler`, or by one thread: the tokens are the same.

    A row without a token has its error in its place, and the others are not touched by it: InternalError
    for logits that are not numbers, RequestError when the settings leave no token to choose.
    """
    choose = _native.sample_rows if sampler is None else sampler.sample_rows
    return [_outcome(choice) for choice in choose(logits, rows, states)]


def _outcome(choice: _native.Choice) -> SampledToken | GristmillError:
    token_id = choice.token_id
    if token_id < 0:
        return _error(choice)
    report = choice.logprobs
    return SampledToken(
        token_id, None if report is None else TokenLogprobs(token_id, report.logprob, report.top)
    )


def _error(choice: _native.Choice) -> GristmillError:
    if choice.fault == _native.ChoiceFault.not_finite:
        return not_finite(choice.largest)
    return RequestError(
        "these settings leave no token to choose",
        hint="loosen min_tokens, allowed_token_ids, bad_words or logit_bias",
    )
