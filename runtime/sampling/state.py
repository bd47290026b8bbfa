"""What the sampler remembers of one completion: its tokens so far and its stream of random numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.sampling.params import SamplingParams

__all__ = ["SamplerState"]

_UINT64 = (1 << 64) - 1


class SamplerState:
    """Settings and history of completion `index` of a request.

    `seed` is the request's own seed, already drawn where the caller gave none.
    `end_token_ids` end a generation and can't be chosen before `min_tokens`.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        index: int,
        prompt_token_ids: Sequence[int],
        end_token_ids: Collection[int],
        vocab_size: int,
    ) -> None:
        self.params = params
        self.position = len(prompt_token_ids)
        self._num_output = 0
        self._key = np.array([seed & _UINT64, index], np.uint64)
        self._end_token_ids = np.array(sorted(end_token_ids), np.intp)
        self._bias_ids = np.array(list(params.logit_bias), np.intp)
        self._bias = np.array(list(params.logit_bias.values()), np.float64)
        self._counts = np.zeros(vocab_size if params.has_penalties else 0, np.int32)
        self._seen = np.zeros(self._counts.size, np.bool_)
        if params.has_penalties:
            self._seen[np.array(prompt_token_ids, np.intp)] = True

    def append(self, token_id: int) -> None:
        """Add the token that was chosen."""
        self.position += 1
        self._num_output += 1
        if self.params.has_penalties:
            self._counts[token_id] += 1
            self._seen[token_id] = True

    def uniform(self) -> float:
        """A number in [0, 1) that depends on the request's seed, the completion and the position alone.

        Philox is a counter-based generator (Salmon et al. 2011): the position is
        its counter, so that nothing has to be carried from step to step.
        """
        counter = np.array([self.position, 0, 0, 0], np.uint64)
        bits = int(np.random.Philox(key=self._key, counter=counter).random_raw())
        return float((bits >> 11) * 2.0**-53)

    @property
    def adjusts(self) -> bool:
        """True when `adjust` has something to change."""
        return self._too_short or self._bias_ids.size > 0 or self.params.has_penalties

    def adjust(self, logits: NDArray[np.float64]) -> None:
        """Change a row in place: minimum length, logit bias, then penalties, as vLLM orders them."""
        if self._too_short:
            logits[self._end_token_ids] = -np.inf
        if self._bias_ids.size:
            logits[self._bias_ids] += self._bias
        if self.params.has_penalties:
            self._penalize(logits)

    @property
    def _too_short(self) -> bool:
        return self._num_output < self.params.min_tokens

    def _penalize(self, logits: NDArray[np.float64]) -> None:
        """Repetition (CTRL, Keskar et al. 2019) over prompt and output, the others over the output alone."""
        repetition = self.params.repetition_penalty
        seen = logits[self._seen]
        logits[self._seen] = np.where(seen > 0, seen / repetition, seen * repetition)
        logits -= self.params.frequency_penalty * self._counts
        logits -= self.params.presence_penalty * (self._counts > 0)
