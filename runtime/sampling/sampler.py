"""Choose the next token from a row of logits.

Rows are handled one by one, each vectorised over the vocabulary: a row's
result then can't depend on the other requests of the batch, to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import InternalError, RequestError
from gristmill.runtime.sampling.logprobs import TokenLogprobs, token_logprobs
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.sampling.state import SamplerState

__all__ = ["SampledToken", "filter_tokens", "sample"]

Floats = NDArray[np.float64]

_BLOCK = 256


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The chosen token, with its log probabilities if the request asks for them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


def sample(logits: NDArray[np.float32], state: SamplerState) -> SampledToken:
    """Choose a token for one row [vocab] and record it in `state`.

    Ties go to the lowest token id. Raises InternalError for logits that are not
    numbers, RequestError when the settings leave no token to choose.
    """
    token_id = _choose(logits, state)
    state.append(token_id)
    count = state.params.logprobs
    return SampledToken(token_id, None if count is None else token_logprobs(logits, token_id, count))


def _choose(logits: NDArray[np.float32], state: SamplerState) -> int:
    best = int(logits.argmax())  # finds a NaN wherever it stands
    if not np.isfinite(logits[best]):
        found = logits[best]
        raise InternalError(
            "the model's logits are not finite", found=found, hint="the weights may be damaged"
        )
    if state.params.is_greedy and not state.adjusts:
        return best
    row = logits.astype(np.float64)
    state.adjust(row)
    best = int(row.argmax())
    if row[best] == -np.inf:
        raise RequestError("these settings leave no token to choose", field="min_tokens")
    if state.params.is_greedy:
        return best
    token_ids, probabilities = filter_tokens(row, state.params)
    return int(token_ids[_draw(probabilities, state.uniform())])


def filter_tokens(logits: Floats, params: SamplingParams) -> tuple[NDArray[np.intp], Floats]:
    """The token ids, ascending, that the settings leave, and their probabilities up to a common factor.

    Temperature, min-p, top-k and top-p in this order, each on what the last one left, as in vLLM.
    """
    scaled = logits - logits.max()
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf
        scaled /= params.temperature
    token_ids = np.arange(logits.size)
    if params.min_p > 0.0:
        token_ids = np.flatnonzero(scaled >= np.log(params.min_p))
        scaled = scaled[token_ids]
    if 0 < params.top_k < scaled.size:
        kept = _largest(scaled, params.top_k)
        token_ids, scaled = token_ids[kept], scaled[kept]
    probabilities = np.exp(scaled, out=scaled)
    if params.top_p < 1.0:
        kept = _largest(probabilities, _nucleus_size(probabilities, params.top_p))
        token_ids, probabilities = token_ids[kept], probabilities[kept]
    return token_ids, probabilities


def _largest(values: Floats, count: int) -> NDArray[np.intp]:
    """Indices, ascending, of the `count` largest values; of equal ones the first are kept."""
    threshold = np.partition(values, values.size - count)[values.size - count]
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: count - above.size]
    return np.sort(np.concatenate([above, equal]))


def _nucleus_size(probabilities: Floats, top_p: float) -> int:
    """The fewest most probable tokens whose share reaches top_p (Holtzman et al. 2020)."""
    cumulative = np.cumsum(np.sort(probabilities)[::-1])
    size = int(np.searchsorted(cumulative, top_p * cumulative[-1], side="left")) + 1
    return min(size, probabilities.size)


def _draw(probabilities: Floats, uniform: float) -> int:
    """Invert the cumulative distribution, over blocks and then inside one; never the index of a zero."""
    starts = np.arange(0, probabilities.size, _BLOCK)
    cumulative = np.cumsum(np.add.reduceat(probabilities, starts))
    target = uniform * float(cumulative[-1])
    block = _invert(cumulative, target)
    before = float(cumulative[block - 1]) if block else 0.0
    inside = probabilities[starts[block] : starts[block] + _BLOCK]
    return int(starts[block]) + _invert(np.cumsum(inside), target - before)


def _invert(cumulative: Floats, target: float) -> int:
    """The first index whose cumulative weight exceeds `target`, or if rounding leaves none, the last."""
    index = int(np.searchsorted(cumulative, target, side="right"))
    return min(index, int(np.searchsorted(cumulative, cumulative[-1], side="left")))
