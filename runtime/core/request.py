"""One sequence as the scheduler sees it: token ids, blocks and how far it is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

__all__ = ["Chunk", "LogitRows", "Request", "RequestState"]

LogitRows = Literal["none", "last", "all"]


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
    preempted request keeps its output and computes everything again.
    `score_prompt` asks for a row of logits at every prompt position. Of two
    requests the one with the lower `priority` goes first. Only requests with the
    same `cache_salt` share cached prefixes; `num_cached` prompt tokens were found
    there when it first began to run.
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
    num_cached: int = field(init=False, default=0)
    block_table: list[int] = field(init=False, default_factory=list)
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


@dataclass(frozen=True, slots=True)
class Chunk:
    """One request's share of a step: `length` tokens from position `start`.

    `completes` says that every known token is then computed, so that the last
    row of logits chooses the next one.
    """

    request: Request
    start: int
    length: int
    completes: bool
    logits: LogitRows
