"""How a scheduler is sized."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gristmill.runtime.errors import InputError

__all__ = ["SchedulerConfig"]

_AT_LEAST_ONE = (
    "num_blocks",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_scored_tokens",
    "max_waiting_tokens",
)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes that bound a step and the queue. Raises InputError when they contradict each other.

    `max_model_len` bounds prompt and output of one request together;
    `max_num_batched_tokens` the tokens of a step; `max_scored_tokens` the
    prompt positions of a step that ask for logits of their own, so that a
    step has at most `max_num_seqs + max_scored_tokens` rows of logits;
    `max_waiting` the requests beyond those that can run, and
    `max_waiting_tokens` their prompts together. A step with a decode is planned
    to take at most `itl_target` seconds.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_scored_tokens: int = 128
    max_waiting: int = 256
    max_waiting_tokens: int = 1 << 20
    itl_target: float = 0.05
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise InputError(f"{name} is too small", found=getattr(self, name), expected="at least 1")
        if self.max_waiting < 0:
            raise InputError("max_waiting is negative", found=self.max_waiting, expected="0 or more")
        if not 0 < self.itl_target < math.inf:
            raise InputError("itl_target is invalid", found=self.itl_target, expected="more than 0 seconds")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(
                "max_num_batched_tokens leaves some running requests without a token",
                found=self.max_num_batched_tokens,
                expected=f"at least max_num_seqs = {self.max_num_seqs}",
            )
        if self.max_model_len > self.num_blocks * self.block_size:
            raise InputError(
                "max_model_len is more than the cache holds",
                found=self.max_model_len,
                expected=f"at most {self.num_blocks} blocks of {self.block_size} tokens",
            )

    @property
    def capacity(self) -> int:
        """Requests that may run and wait at once."""
        return self.max_num_seqs + self.max_waiting

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self.block_size)
