"""One sequence as the scheduler sees it: token ids, blocks and how far it is computed."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

from gristmill.runtime.core.prefix_cache import CachedBlock

__all__ = ["MOST_PREEMPTIONS", "Request", "RequestState"]

MOST_PREEMPTIONS = 3


class RequestState(Enum):
    """WAITING (also after a preemption) -> RUNNING -> FINISHED."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and what has been generated after it.

    `token_ids` are prompt and output together; the keys and values of the
    first `num_computed` of them are in the cache, through `block_table`. A
    preempted request keeps its output and computes again what is no longer
    cached. `score_prompt` asks for a row of logits at every prompt position.
    Of two requests the one with the lower `priority` goes first. Only requests
    with the same `cache_salt` share cached prefixes; `num_cached` prompt tokens
    were found there when it first began to run.

    `num_reserved` blocks are promised to it and join its table as it is read.
    `chain` are the cached blocks of its first tokens. A running request holds
    them at the front of its table, and adds its own while `indexes` is true; a
    waiting one only remembers where it found them.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    score_prompt: bool = False
    priority: int = 0
    cache_salt: str = ""
    arrival: int = field(init=False, default=-1)
    state: RequestState = field(init=False, default=RequestState.WAITING)
    token_ids: list[int] = field(init=False)
    num_computed: int = field(init=False, default=0)
    most_computed: int = field(init=False, default=0)
    num_recomputed: int = field(init=False, default=0)
    num_cached: int = field(init=False, default=0)
    block_table: array[int] = field(init=False, default_factory=lambda: array("i"))
    num_reserved: int = field(init=False, default=0)
    chain: list[CachedBlock] = field(init=False, default_factory=list)
    indexes: bool = field(init=False, default=False)
    num_preemptions: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_remaining(self) -> int:
        """Tokens whose keys and values are not in the cache yet: 1 while decoding."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def is_protected(self) -> bool:
        """Preempted often enough: it enters with all blocks that it can need, and keeps them to its end."""
        return self.num_preemptions >= MOST_PREEMPTIONS

    @property
    def order(self) -> tuple[int, bool, int]:
        """Who goes first: by priority; in one priority the protected ones, then by arrival."""
        return self.priority, not self.is_protected, self.arrival

    @property
    def cache_root(self) -> Hashable:
        """What must be equal for two requests to share prefixes; an adapter's identity would join it."""
        return (self.cache_salt,)

    @property
    def num_held_tokens(self) -> int:
        """Tokens that its table must have room for when it enters."""
        if self.is_protected:
            return len(self.prompt_token_ids) + self.max_tokens
        return len(self.token_ids)

    def advance(self, length: int) -> None:
        """The next `length` tokens are computed."""
        end = self.num_computed + length
        self.num_recomputed += max(0, min(end, self.most_computed) - self.num_computed)
        self.num_computed = end
        self.most_computed = max(self.most_computed, end)
