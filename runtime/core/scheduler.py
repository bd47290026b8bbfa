"""Which tokens the next step computes.

Each step takes one token of every decoding request, then shares what the time
allows among a few prompts. Requests run and wait in one order: by priority,
then by arrival.

Blocks. A request enters when all blocks for its known tokens are free, and
reserves them, so that a prompt never stalls half way. It brings the blocks that
the prefix cache has of its tokens. When a decode finds no free block, the last
request in order gives its blocks back and computes again later what the cache
has lost by then.

Priorities. A strictly more urgent request takes slots and blocks of less urgent
ones; among equals nobody leaves for a newcomer. A request that was preempted
`MOST_PREEMPTIONS` times enters once its whole remaining answer fits, before
all others of its priority, and is never preempted again. So each finishes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable
from dataclasses import dataclass
from operator import attrgetter

from gristmill.runtime.core.block_tables import BlockTables
from gristmill.runtime.core.config import SchedulerConfig
from gristmill.runtime.core.cost_model import COSTS, CostModel
from gristmill.runtime.core.integrity import problems
from gristmill.runtime.core.limits import check_fits, queue_full
from gristmill.runtime.core.request import Request, RequestState
from gristmill.runtime.core.room import victims_for
from gristmill.runtime.core.step_plan import Chunk, LogitRows, StepPlan, StepWork, step_work
from gristmill.runtime.core.token_budget import LEAST_TOKENS, largest_budget, num_readers, share_tokens
from gristmill.runtime.errors import InternalError, RequestError

__all__ = ["Scheduler", "SchedulerCounts"]

_ORDER = attrgetter("order")
_MOST_LONG_READERS = 2


@dataclass(slots=True)
class SchedulerCounts:
    """What happened since the start: how often a request gave its blocks back, and numbers of tokens."""

    preemptions: int = 0
    recomputed: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


class Scheduler:
    """Owns the requests and their blocks; one thread calls it, between steps."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._tables = BlockTables(config)
        self._cost = CostModel()
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._requests: dict[str, Request] = {}
        self._num_arrived = 0
        self._counts = SchedulerCounts()

    @property
    def config(self) -> SchedulerConfig:
        """The sizes it was made with."""
        return self._config

    @property
    def counts(self) -> SchedulerCounts:
        """What happened since the start."""
        return self._counts

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that hold none, preempted ones included."""
        return len(self._waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of the waiting requests."""
        return sum(len(request.prompt_token_ids) for request in list(self._waiting))

    @property
    def num_free_blocks(self) -> int:
        """Blocks of the cache that no request holds or has reserved."""
        return self._tables.pool.num_free

    @property
    def num_held_blocks(self) -> int:
        """Blocks of the cache that requests hold."""
        return self._tables.pool.num_held

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks that hold a prefix for later requests."""
        return self._tables.pool.num_cached

    @property
    def num_vacancies(self) -> int:
        """How many more requests `add` accepts now, if their prompts are not too long together."""
        return max(0, self._config.capacity - len(self._requests))

    def step_costs(self) -> dict[str, float]:
        """Seconds of a step by what it does, as learned so far, see `CostModel`."""
        return dict(zip(COSTS, self._cost.weights, strict=True))

    def retry_after(self) -> float:
        """Seconds until the prompts that wait have likely been read, and until a slot is likely free."""
        running = list(self._running)
        unread = self.num_waiting_tokens + sum(r.num_remaining for r in running if r.num_remaining > 1)
        seconds = self._cost.seconds_to_read(unread, self._config.max_num_batched_tokens)
        if len(running) >= self._config.max_num_seqs:
            left = min(request.max_tokens - request.num_output for request in running)
            context = sum(len(request.token_ids) for request in running)
            decode = StepWork(decodes=len(running), context_tokens=context)
            seconds = max(seconds, left * self._cost.predict(decode))
        return seconds

    def check_vacancies(self, count: int, num_tokens: int) -> None:
        """Raise RequestError (queue_full) unless `count` more prompts of `num_tokens` together may queue."""
        config = self._config
        if count > self.num_vacancies:
            raise queue_full(
                f"{self.num_running} running and {self.num_waiting} waiting requests",
                f"at most {config.max_num_seqs} and {config.max_waiting}",
            )
        waiting = self.num_waiting_tokens
        if waiting and waiting + num_tokens > config.max_waiting_tokens:
            raise queue_full(
                f"{waiting} waiting prompt tokens and {num_tokens} new ones",
                f"at most {config.max_waiting_tokens} together",
            )

    def add(self, request: Request) -> None:
        """Queue a new request. Raises RequestError if it can never fit or the queue is full (queue_full)."""
        if not request.prompt_token_ids:
            raise RequestError("the prompt is empty", field="prompt", found="0 tokens", expected="at least 1")
        check_fits(self._config, len(request.prompt_token_ids), request.max_tokens)
        if request.request_id in self._requests:
            raise RequestError("a request with this id is active", field="request_id", code="duplicate_id")
        self.check_vacancies(1, len(request.prompt_token_ids))
        request.arrival = self._num_arrived
        self._num_arrived += 1
        self._requests[request.request_id] = request
        insort(self._waiting, request, key=_ORDER)

    def schedule(self) -> StepPlan:
        """Plan one step; empty only when there is no request at all. Blocks for it are held on return."""
        preemptions = self._counts.preemptions
        decodes = self._grow_decodes()
        if not self._waiting and len(decodes) == len(self._running):
            return StepPlan(tuple(self._chunk(request, 1) for request in decodes))
        tokens = self._most_prompt_tokens(decodes)
        # Blocks that a decode just took from a request are not for a newcomer.
        scarce = self._counts.preemptions > preemptions
        copies = [] if scarce else self._admit(decodes, tokens)
        chunks = [self._chunk(request, 1) for request in decodes if request.state is RequestState.RUNNING]
        chunks += self._read_prompts(self._readers(decodes), tokens, step_work(chunks))
        return StepPlan(tuple(chunks), tuple(copies))

    def advance(self, plan: StepPlan) -> None:
        """Record that the step was executed: its tokens are in the cache."""
        for chunk in plan.chunks:
            request = chunk.request
            before = request.num_recomputed
            request.advance(chunk.length)
            self._counts.recomputed += request.num_recomputed - before
            self._tables.index(request)

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Learn how long an executed step took."""
        self._cost.observe(step_work(plan.chunks), seconds)

    def finish(self, request_id: str) -> None:
        """End a request in any state and free its blocks; an unknown id is a fault of the caller."""
        request = self._requests.pop(request_id)
        queue = self._running if request.state is RequestState.RUNNING else self._waiting
        queue.remove(request)
        self._tables.leave(request)
        request.state = RequestState.FINISHED

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        self._tables.forget_cached(self._running)

    def check_integrity(self) -> None:
        """Raise InternalError unless blocks are conserved and every request is in one consistent place."""
        self._tables.check_integrity(list(self._requests.values()))
        for problem in problems(self._config, self._running, self._waiting, list(self._requests.values())):
            raise InternalError(f"the scheduler's books are wrong: {problem}")

    def _grow_decodes(self) -> list[Request]:
        """The requests that need one token, each with a block for it; the last in order leave if need be."""
        decodes: list[Request] = []
        for request in list(self._running):
            if request.num_remaining != 1:
                continue
            while request.state is RequestState.RUNNING and not self._tables.grow(
                request, len(request.token_ids)
            ):
                self._preempt(next(r for r in reversed(self._running) if not r.is_protected))
            if request.state is RequestState.RUNNING:
                decodes.append(request)
        return decodes

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self._tables.leave(request)
        request.state = RequestState.WAITING
        request.num_preemptions += 1
        self._counts.preemptions += 1
        insort(self._waiting, request, key=_ORDER)

    def _most_prompt_tokens(self, decodes: list[Request]) -> int:
        """Tokens of prompts beside `decodes`, if attention to what comes before them cost nothing."""
        most = self._config.max_num_batched_tokens - len(decodes)
        if not decodes:
            return most
        decode_work = StepWork().plus((request.num_computed, 1, 1) for request in decodes)

        def in_time(tokens: int) -> bool:
            work = decode_work.plus([(0, tokens, 0)])
            return self._cost.allow(work) <= self._config.itl_target

        return largest_budget(min(LEAST_TOKENS, most), most, in_time)

    def _readers(self, decodes: list[Request]) -> list[Request]:
        """Who runs and reads its prompt, in order."""
        decoding = set(map(id, decodes))
        return [request for request in self._running if id(request) not in decoding]

    def _admit(self, decodes: list[Request], tokens: int) -> list[tuple[int, int]]:
        """Let waiting requests enter while a step of `tokens` has use for them; returns the copies they need.

        A prompt waits while another request computes the next blocks of it, or
        while enough long ones are read, and others go before it. One that lacks
        room holds up all behind it: else a large one might wait for ever.
        """
        if not self._waiting:
            return []
        copies = []
        readers = self._readers(decodes)
        in_flight = self._blocks_in_flight(readers, tokens)
        left: list[Request] = []
        wants_ahead: dict[int, list[int]] = {}  # by priority, until somebody enters
        for request in list(self._waiting):
            if any(victim.order < request.order for victim in left):  # it waits before this one now
                break
            if request.priority not in wants_ahead:
                wants_ahead[request.priority] = [
                    other.num_remaining for other in readers if other.priority <= request.priority
                ]
            wants = wants_ahead[request.priority]
            if num_readers([*wants, 1], tokens) <= len(wants):
                break
            self._tables.look_up(request)
            if self._must_wait(request, wants, in_flight):
                continue
            victims = victims_for(request, self._config, self._tables.pool, self._running)
            if victims is None:
                break
            for victim in victims:
                self._preempt(victim)
            left += victims
            copies += self._enter(request)
            readers = self._readers(decodes)
            wants_ahead.clear()
            in_flight[self._tables.upcoming(request)] = request.priority
        return copies

    def _blocks_in_flight(self, readers: list[Request], tokens: int) -> dict[Hashable, int]:
        """The next blocks of the prompts that this step reads, and how urgent their readers are."""
        count = num_readers([request.num_remaining for request in readers], tokens)
        return {
            self._tables.upcoming(request): request.priority for request in readers[:count] if request.indexes
        }

    def _must_wait(self, request: Request, wants: list[int], in_flight: dict[Hashable, int]) -> bool:
        """Whether others may go first: see `_admit`."""
        unread = len(request.token_ids) - len(request.chain) * self._config.block_size
        most = self._config.max_num_batched_tokens
        if unread > most and sum(want > most for want in wants) >= _MOST_LONG_READERS:
            return True
        blocks = None if request.score_prompt else self._tables.upcoming(request)
        return blocks is not None and in_flight.get(blocks, request.priority + 1) <= request.priority

    def _enter(self, request: Request) -> list[tuple[int, int]]:
        copy = self._tables.enter(request)
        self._waiting.remove(request)
        insort(self._running, request, key=_ORDER)
        request.state = RequestState.RUNNING
        if request.most_computed == 0 and self._config.prefix_caching and not request.score_prompt:
            request.num_cached = request.num_computed
            self._counts.prefix_queries += len(request.prompt_token_ids)
            self._counts.prefix_hits += request.num_cached
        return [] if copy is None else [copy]

    def _read_prompts(self, readers: list[Request], tokens: int, decode_work: StepWork) -> list[Chunk]:
        """Chunks of the first prompts in order, as many tokens as the time allows beside the decodes."""
        wants = self._wants(readers)
        readers = [request for request, want in zip(readers, wants, strict=True) if want]
        wants = [want for want in wants if want]
        count = num_readers(wants, tokens)
        readers, wants = readers[:count], wants[:count]

        def in_time(budget: int) -> bool:
            shares = share_tokens(readers, wants, budget)
            parts = [
                (reader.num_computed, share, share if reader.score_prompt else 0)
                for reader, share in zip(readers, shares, strict=True)
            ]
            return self._cost.allow(decode_work.plus(parts)) <= self._config.itl_target

        if decode_work.decodes and readers:
            tokens = largest_budget(min(tokens, max(count, LEAST_TOKENS)), tokens, in_time)
        shares = share_tokens(readers, wants, tokens)
        return [self._read(request, share) for request, share in zip(readers, shares, strict=True)]

    def _read(self, request: Request, length: int) -> Chunk:
        if not self._tables.grow(request, request.num_computed + length):
            raise InternalError(f"{request.request_id} has lost the blocks reserved for its prompt")
        return self._chunk(request, length)

    def _wants(self, readers: list[Request]) -> list[int]:
        """How many tokens each would take; the scored ones share what a step may score."""
        scored = self._config.max_scored_tokens
        wants = []
        for request in readers:
            want = request.num_remaining
            if request.score_prompt:
                want = min(want, scored)
                scored -= want
            wants.append(want)
        return wants

    def _chunk(self, request: Request, length: int) -> Chunk:
        completes = length == request.num_remaining
        rows: LogitRows = "none"
        if request.score_prompt:
            rows = "all"
        elif completes and request.max_tokens:
            rows = "last"
        return Chunk(request, request.num_computed, length, completes, rows)
