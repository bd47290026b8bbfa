"""How long a step takes, learned from the steps before it.

Seconds are a sum over the counts of `StepWork`, each times a weight that is
never negative. The weights fit the recent steps by least squares of the
relative error, with exponential forgetting (half of a memory is the last 14
steps), and lean a little on the first guess where the steps say nothing. Steps
that read prompts and steps that don't are remembered apart: a long answer does
not make it forget what prompts take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import add, mul

from gristmill.runtime.core.step_plan import StepWork

__all__ = ["COSTS", "CostModel"]

COSTS = ("step", "prefill_token", "thousand_prefill_pairs", "decode", "thousand_context_tokens", "logit_row")
"""The counts by name, in the order of the weights."""

# Seconds of a step by itself, a prompt's token, 1,000 pairs of its attention, a decode, 1,000 tokens of its
# context and a further row of logits. Rather slow, so that the first steps are short.
_FIRST_GUESS = (2e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-4)
_LEAST_STEP = 1e-6  # seconds of any step: noise may fit it to nothing, and times are compared with it
_SIZE = len(_FIRST_GUESS)
_KEPT = 0.95
_LEANING = 1e-4
_MOST_SURPRISE = 2.0
_TRUSTS_ITSELF_AFTER = 8

_Vector = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Memory:
    """Weighted sums over past steps: of products of two counts, and of a count and the seconds."""

    moments: list[list[float]] = field(default_factory=lambda: [[0.0] * _SIZE for _ in range(_SIZE)])
    targets: list[float] = field(default_factory=lambda: [0.0] * _SIZE)

    def add(self, counts: _Vector, seconds: float, share: float) -> None:
        """Add a step with the weight `share`."""
        for i, count in enumerate(counts):
            if count:
                weight = share * count
                self.targets[i] += weight * seconds
                self.moments[i] = [m + weight * c for m, c in zip(self.moments[i], counts, strict=True)]

    def fade(self, kept: float) -> None:
        """Let everything so far count for a part of what it did."""
        for i in range(_SIZE):
            self.targets[i] *= kept
            self.moments[i] = [kept * moment for moment in self.moments[i]]


class CostModel:
    """Predicts seconds of a step; a few microseconds each, and tens of them for `observe`."""

    def __init__(self) -> None:
        self._weights = list(_FIRST_GUESS)
        self._reading, self._answering = _Memory(), _Memory()
        self._num_observed = 0
        self._lateness = (
            0.0  # mean square of what steps that read took beyond their prediction, as a share of it
        )
        self._was_surprised = False

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

    def allow(self, work: StepWork) -> float:
        """Seconds that `work` should stay within: what is predicted, and how late such steps usually are."""
        return self.predict(work) * (1 + math.sqrt(self._lateness))

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn that `work` took `seconds`.

        A time far above what was predicted counts as twice that, so that one
        stall hardly matters; after two in a row the machine is slow, and what
        was learned before counts half. A clock that jumped backwards says nothing.
        """
        if seconds <= 0:
            return
        self._num_observed += 1
        expected = self.predict(work)
        surprised = self._num_observed > _TRUSTS_ITSELF_AFTER and seconds > _MOST_SURPRISE * expected
        if surprised:
            seconds = _MOST_SURPRISE * expected
        if surprised and self._was_surprised:
            self._reading.fade(0.5)
            self._answering.fade(0.5)
        self._was_surprised = surprised
        if work.prefill_tokens and self._num_observed > _TRUSTS_ITSELF_AFTER:
            late = max(0.0, seconds / expected - 1)
            self._lateness += (1 - _KEPT) * (late**2 - self._lateness)
        memory = self._reading if work.prefill_tokens else self._answering
        memory.fade(_KEPT)
        memory.add(_counts(work), seconds, 1.0 / max(expected, seconds / _MOST_SURPRISE) ** 2)
        self._refit()

    def seconds_to_read(self, num_tokens: int, tokens_a_step: int) -> float:
        """Seconds to compute prompts of `num_tokens` in steps of `tokens_a_step`, without long contexts."""
        steps = num_tokens / tokens_a_step
        return steps * self.predict(StepWork(prefill_tokens=tokens_a_step))

    def _refit(self) -> None:
        """One pass of coordinate descent: each weight in turn at its best, and not below its least."""
        weights = self._weights
        for i, first in enumerate(_FIRST_GUESS):
            row = list(map(add, self._reading.moments[i], self._answering.moments[i]))
            target = self._reading.targets[i] + self._answering.targets[i]
            leaning = _LEANING / first**2
            others = sum(map(mul, row, weights)) - row[i] * weights[i]
            least = 0.0 if i else _LEAST_STEP
            weights[i] = max(least, (target - others + leaning * first) / (row[i] + leaning))


def _counts(work: StepWork) -> _Vector:
    return (
        1.0,
        work.prefill_tokens,
        work.prefill_pairs / 1000,
        work.decodes,
        work.context_tokens / 1000,
        work.rows,
    )
