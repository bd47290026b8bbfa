"""How long a step takes, learned from the steps before it.

Seconds are a sum over the counts of `StepWork`, each times a weight that is
never negative. The weights fit the recent steps by least squares of the
relative error, with exponential forgetting (half of the weight lies on the last
34 steps), and lean a little on the first guess where the steps say nothing.
"""

from __future__ import annotations

from gristmill.runtime.core.step_plan import StepWork

__all__ = ["CostModel"]

# Seconds of a step by itself, a prompt's token, 1,000 pairs of its attention, a decode, 1,000 tokens of its
# context and a further row of logits. Rather slow, so that the first steps are short.
_FIRST_GUESS = (2e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-4)
_MEMORY = 0.98
_LEANING = 1e-4
_SWEEPS = 3
_MOST_SURPRISE = 2.0
_TRUSTS_ITSELF_AFTER = 8

_Vector = tuple[float, ...]


class CostModel:
    """Predicts seconds of a step. `observe` takes about 20 microseconds, `predict` one."""

    def __init__(self) -> None:
        size = len(_FIRST_GUESS)
        self._weights = list(_FIRST_GUESS)
        self._moments = [[0.0] * size for _ in range(size)]
        self._targets = [0.0] * size
        self._num_observed = 0

    @property
    def weights(self) -> _Vector:
        """Seconds for one of each count; none is negative."""
        return tuple(self._weights)

    def predict(self, work: StepWork) -> float:
        """Seconds that `work` will take."""
        base, token, pair, decode, context, row = self._weights
        return (
            base
            + token * work.prefill_tokens
            + pair * work.prefill_pairs / 1000
            + decode * work.decodes
            + context * work.context_tokens / 1000
            + row * work.rows
        )

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn that `work` took `seconds`.

        A time far above what was predicted counts as twice that: one stall
        hardly matters, a machine that has become slow is believed step by step.
        A clock that jumped backwards says nothing.
        """
        if seconds <= 0:
            return
        self._num_observed += 1
        if self._num_observed > _TRUSTS_ITSELF_AFTER:
            seconds = min(seconds, _MOST_SURPRISE * self.predict(work))
        counts = _counts(work)
        share = 1.0 / seconds**2
        for i, count in enumerate(counts):
            self._targets[i] = _MEMORY * self._targets[i] + share * count * seconds
            row = self._moments[i]
            for j, other in enumerate(counts):
                row[j] = _MEMORY * row[j] + share * count * other
        for _ in range(_SWEEPS):
            self._sweep()

    def seconds_to_read(self, num_tokens: int, tokens_a_step: int) -> float:
        """Seconds to compute prompts of `num_tokens` in steps of `tokens_a_step`, without long contexts."""
        steps = num_tokens / tokens_a_step
        return steps * self.predict(StepWork(prefill_tokens=tokens_a_step))

    def _sweep(self) -> None:
        """One pass of coordinate descent: each weight in turn at its best, and not below zero."""
        weights = self._weights
        for i, first in enumerate(_FIRST_GUESS):
            row = self._moments[i]
            leaning = _LEANING / first**2
            others = sum(moment * weight for moment, weight in zip(row, weights, strict=True))
            others -= row[i] * weights[i]
            best = (self._targets[i] - others + leaning * first) / (row[i] + leaning)
            weights[i] = max(0.0, best)


def _counts(work: StepWork) -> _Vector:
    return (
        1.0,
        work.prefill_tokens,
        work.prefill_pairs / 1000,
        work.decodes,
        work.context_tokens / 1000,
        work.rows,
    )
