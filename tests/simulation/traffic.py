"""Random traffic: prompts that begin alike, salts, priorities, and clocks that jump."""

from __future__ import annotations

from random import Random

from gristmill.runtime.core.config import SchedulerConfig
from gristmill.runtime.core.request import Request
from gristmill.runtime.core.step_plan import StepWork

__all__ = ["Traffic", "random_config", "true_seconds"]

_ALPHABET = 3  # so few that prompts often share more than they were meant to
_SALTS = ("", "", "", "ours", "theirs")
_PRIORITIES = (0, 0, 0, 0, -1, 1, 7)
_MOST_REMEMBERED = 4


def random_config(choose: Random) -> SchedulerConfig:
    """A small cache and narrow bounds, so that everything runs out often."""
    block_size = choose.choice([1, 2, 4, 4, 7])
    num_blocks = choose.randint(4, 28)
    max_num_seqs = choose.randint(1, 6)
    return SchedulerConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=num_blocks * block_size - choose.randint(0, 3),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + choose.choice([0, 3, 20, 60]),
        max_scored_tokens=choose.randint(1, 8),
        max_waiting=choose.randint(0, 8),
        max_waiting_tokens=choose.choice([10, 100, 1000]),
        itl_target=choose.choice([0.01, 0.05]),
        prefix_caching=choose.random() < 0.9,
    )


def true_seconds(work: StepWork) -> float:
    """What a step really takes."""
    return (
        4e-3
        + 3e-4 * work.prefill_tokens
        + 1e-6 * work.prefill_pairs
        + 5e-4 * work.decodes
        + 1e-6 * work.context_tokens
    )


class Traffic:
    """Requests one after the other; remembers some conversations, to go on with them."""

    def __init__(self, choose: Random, config: SchedulerConfig) -> None:
        self._choose = choose
        self._longest = config.max_model_len + 2
        self._beginnings = [self._tokens(choose.randint(1, self._longest)) for _ in range(3)]
        self._num_made = 0

    def request(self) -> Request:
        """The next to arrive; some are too long."""
        choose = self._choose
        beginning = choose.choice(self._beginnings)[: choose.randint(0, self._longest)]
        prompt = (beginning + self._tokens(choose.randint(0, 9)))[: self._longest] or (0,)
        self._num_made += 1
        return Request(
            str(self._num_made),
            prompt,
            choose.randint(0, max(1, self._longest // 3)),
            score_prompt=choose.random() < 0.1,
            priority=choose.choice(_PRIORITIES),
            cache_salt=choose.choice(_SALTS),
        )

    def token(self) -> int:
        """The next token of some answer."""
        return self._choose.randrange(_ALPHABET)

    def ended(self, request: Request) -> None:
        """A conversation that may go on."""
        self._beginnings.append(tuple(request.token_ids))
        del self._beginnings[3:-_MOST_REMEMBERED]

    def observed(self, seconds: float) -> float:
        """What the clock shows of a step: noise, stalls, and jumps in both directions."""
        choose = self._choose
        if choose.random() < 0.02:
            return seconds * choose.choice([-1.0, 0.0, 10.0, 1000.0])
        return seconds * choose.uniform(0.8, 1.3)

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._choose.choices(range(_ALPHABET), k=count))
