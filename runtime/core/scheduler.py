"""Which tokens the next step computes.

Each step takes one token of every decoding request first, then chunks of
prompts, first come first served, up to a budget of tokens. A request enters
when all blocks for its known tokens are free, so that a prompt never stalls
half way. When a decode finds no free block, the newest request gives its
blocks back and computes again later. The oldest is never the victim and
always fits alone, so every step brings it forward.

Requests run and wait in order of arrival, and every running request is
older than every waiting one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gristmill.runtime.core.block_pool import BlockPool
from gristmill.runtime.core.request import Chunk, LogitRows, Request, RequestState
from gristmill.runtime.errors import InputError, InternalError, RequestError

__all__ = ["Scheduler", "SchedulerConfig"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes that bound a step and the queue. Raises InputError when they contradict each other.

    `max_model_len` bounds prompt and output of one request together;
    `max_num_batched_tokens` the tokens of a step; `max_scored_tokens` the
    prompt positions of a step that ask for logits of their own, so that a
    step has at most `max_num_seqs + max_scored_tokens` rows of logits;
    `max_waiting` the requests beyond those that can run.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_scored_tokens: int = 128
    max_waiting: int = 256

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_model_len", "max_num_seqs", "max_scored_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is too small", found=getattr(self, name), expected="at least 1")
        if self.max_waiting < 0:
            raise InputError("max_waiting is negative", found=self.max_waiting, expected="0 or more")
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


class Scheduler:
    """Owns the requests and their blocks; one thread calls it, between steps."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._pool = BlockPool(config.num_blocks)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._requests: dict[str, Request] = {}
        self._num_arrived = 0
        self._num_preemptions = 0

    @property
    def config(self) -> SchedulerConfig:
        """The sizes it was made with."""
        return self._config

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that hold none, preempted ones included."""
        return len(self._waiting)

    @property
    def num_free_blocks(self) -> int:
        """Blocks of the cache that no request holds."""
        return self._pool.num_free

    @property
    def num_preemptions(self) -> int:
        """How often a request gave its blocks back since the start."""
        return self._num_preemptions

    @property
    def num_vacancies(self) -> int:
        """How many more requests `add` accepts now."""
        capacity = self._config.max_num_seqs + self._config.max_waiting
        return max(0, capacity - len(self._requests))

    def check_fits(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Raise RequestError (code context_length_exceeded) for a request that could never finish."""
        limit = self._config.max_model_len
        if num_prompt_tokens + min(max_tokens, 1) > limit:
            raise RequestError(
                "the prompt does not fit into the context",
                field="prompt",
                code="context_length_exceeded",
                found=f"{num_prompt_tokens} prompt tokens",
                expected=f"a context of {limit} tokens with room for the answer",
                hint="shorten the prompt",
            )
        if num_prompt_tokens + max_tokens > limit:
            raise RequestError(
                "prompt and max_tokens together do not fit into the context",
                field="max_tokens",
                code="context_length_exceeded",
                found=f"{num_prompt_tokens} prompt tokens and max_tokens = {max_tokens}",
                expected=f"at most {limit} tokens together",
                hint=f"ask for at most {limit - num_prompt_tokens} tokens",
            )

    def add(self, request: Request) -> None:
        """Queue a new request. Raises RequestError if it can never fit or the queue is full (queue_full)."""
        if not request.prompt_token_ids:
            raise RequestError("the prompt is empty", field="prompt", found="0 tokens", expected="at least 1")
        self.check_fits(len(request.prompt_token_ids), request.max_tokens)
        if request.request_id in self._requests:
            raise RequestError("a request with this id is active", field="request_id", code="duplicate_id")
        self.check_vacancies(1)
        request.arrival = self._num_arrived
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self._waiting.append(request)

    def check_vacancies(self, count: int) -> None:
        """Raise RequestError (code queue_full) unless `count` more requests may queue."""
        if count > self.num_vacancies:
            raise RequestError(
                "the waiting queue is full",
                code="queue_full",
                found=f"{self.num_running} running and {self.num_waiting} waiting requests",
                expected=f"at most {self._config.max_num_seqs} and {self._config.max_waiting}",
                hint="try again later",
            )

    def schedule(self) -> list[Chunk]:
        """Plan one step; empty only when there is no request at all. Blocks for it are held on return."""
        chunks = self._decodes()
        tokens = self._config.max_num_batched_tokens - len(chunks)
        scored = self._config.max_scored_tokens
        for request in self._prefills():
            length = min(request.num_remaining, tokens)
            if request.score_prompt:
                length = min(length, scored)
                scored -= length
            tokens -= length
            if length:
                chunks.append(self._chunk(request, length))
            if not tokens:
                break
        return chunks

    def advance(self, chunks: Sequence[Chunk]) -> None:
        """Record that the step was executed: its tokens are in the cache."""
        for chunk in chunks:
            chunk.request.num_computed += chunk.length

    def finish(self, request_id: str) -> None:
        """End a request in any state and free its blocks; an unknown id is a fault of the caller."""
        request = self._requests.pop(request_id)
        queue = self._running if request.state is RequestState.RUNNING else self._waiting
        queue.remove(request)
        self._release(request)
        request.state = RequestState.FINISHED

    def check_integrity(self) -> None:
        """Raise InternalError unless blocks are conserved and every request is in one consistent place."""
        self._pool.check_integrity(request.block_table for request in self._requests.values())
        for problem in self._problems():
            raise InternalError(f"the scheduler's books are wrong: {problem}")

    def _problems(self) -> list[str]:
        arrivals = [request.arrival for request in (*self._running, *self._waiting)]
        known = sorted(request.arrival for request in self._requests.values())
        problems = []
        if arrivals != known:
            problems.append("requests are not in order of arrival")
        if len(self._running) > self._config.max_num_seqs:
            problems.append(f"{len(self._running)} requests run")
        for request in self._waiting:
            if request.block_table or request.num_computed or request.state is not RequestState.WAITING:
                problems.append(f"{request.request_id} waits and holds blocks")
        for request in self._running:
            if request.state is not RequestState.RUNNING or request.num_remaining < 0:
                problems.append(f"{request.request_id} does not run")
            spare = len(request.block_table) - self._blocks_for(request.num_computed)
            if spare < 0 or len(request.block_table) > self._blocks_for(len(request.token_ids)):
                problems.append(f"{request.request_id} holds {spare} blocks beyond its computed tokens")
        return problems

    def _decodes(self) -> list[Chunk]:
        """One token for each request that needs just one, preempting the newest when blocks run out."""
        chunks: list[Chunk] = []
        index = 0
        while index < len(self._running):  # preemption shortens the list from its end
            request = self._running[index]
            index += 1
            if request.num_remaining != 1:
                continue
            while not self._grow(request):
                self._preempt_newest()
                if request.state is not RequestState.RUNNING:
                    break
            else:
                chunks.append(self._chunk(request, 1))
        return chunks

    def _grow(self, request: Request) -> bool:
        """Hold a block for each known token; False when none is free."""
        missing = self._blocks_for(len(request.token_ids)) - len(request.block_table)
        if missing > self._pool.num_free:
            return False
        request.block_table += self._pool.allocate(missing)
        return True

    def _preempt_newest(self) -> None:
        request = self._running.pop()
        assert self._running, "a request that runs alone always fits"
        self._release(request)
        request.state = RequestState.WAITING
        request.num_preemptions += 1
        self._num_preemptions += 1
        self._waiting.appendleft(request)

    def _prefills(self) -> Iterator[Request]:
        """Requests with a prompt to compute, oldest first; waiting ones enter as they are asked for."""
        yield from [request for request in self._running if request.num_remaining > 1]
        while self._waiting and len(self._running) < self._config.max_num_seqs:
            request = self._waiting[0]
            # Each running request may need a block in the next step: entering
            # on the last ones would only have the newcomer thrown out again.
            needed = self._blocks_for(len(request.token_ids)) + len(self._running)
            if needed > self._pool.num_free:
                break
            self._waiting.popleft()
            self._grow(request)
            request.state = RequestState.RUNNING
            self._running.append(request)
            yield request

    def _chunk(self, request: Request, length: int) -> Chunk:
        completes = length == request.num_remaining
        rows: LogitRows = "none"
        if request.score_prompt:
            rows = "all"
        elif completes and request.max_tokens:
            rows = "last"
        return Chunk(request, request.num_computed, length, completes, rows)

    def _release(self, request: Request) -> None:
        self._pool.release(request.block_table)
        request.block_table = []
        request.num_computed = 0

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._config.block_size)
