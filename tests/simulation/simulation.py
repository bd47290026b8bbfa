"""A scheduler driven like an engine would, with every law checked after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

from gristmill.runtime.core.request import Request, RequestState
from gristmill.runtime.core.scheduler import Scheduler
from gristmill.runtime.core.step_plan import StepPlan, StepWork, step_work
from gristmill.runtime.core.token_budget import LEAST_TOKENS
from gristmill.runtime.errors import RequestError
from tests.simulation.content_cache import ContentCache
from tests.simulation.traffic import Traffic, random_config, true_seconds

__all__ = ["Simulation", "simulate"]

Orders = Mapping[str, tuple[int, bool, int]]

_STEPS_AN_EPISODE = 400
_LEARNS_WITHIN = 60


def simulate(seed: int, num_steps: int) -> Counter[str]:
    """Episodes of traffic over one engine each, for so many steps; returns what happened how often."""
    outcomes: Counter[str] = Counter()
    episode = 0
    while outcomes["steps"] < num_steps:
        simulation = Simulation(Random(f"{seed} {episode}"))
        try:
            simulation.run(min(_STEPS_AN_EPISODE, num_steps - outcomes["steps"]))
        except Exception as error:
            error.add_note(f"seed {seed}, episode {episode}, step {simulation.outcomes['steps']}")
            raise
        outcomes += simulation.outcomes
        episode += 1
    return outcomes


class Simulation:
    """One engine's life: traffic, then a drain in which everything must end."""

    def __init__(self, choose: Random) -> None:
        self.choose = choose
        self.config = random_config(choose)
        self.scheduler = Scheduler(self.config)
        self.traffic = Traffic(choose, self.config)
        self.cache = ContentCache(self.config.num_blocks, self.config.block_size)
        self.active: dict[str, Request] = {}  # the books kept beside the scheduler's
        self.outcomes: Counter[str] = Counter()
        self.scored: dict[str, int] = {}
        self.num_observed = 0
        self.rate = choose.choice([0.1, 0.3, 0.8])

    def run(self, num_steps: int) -> None:
        """Traffic for so many steps; afterwards each request ends in its time and all blocks are free."""
        for _ in range(num_steps):
            self.disturb()
            self.step()
        self.drain()

    def disturb(self) -> None:
        """What happens between two steps."""
        choose = self.choose
        if choose.random() < self.rate:
            for _ in range(choose.choice([1, 1, 1, 4])):
                self.arrive()
        if self.active and choose.random() < 0.04:
            self.end(self.active[choose.choice(list(self.active))], "aborted")
        if choose.random() < 0.005:
            self.scheduler.reset_prefix_cache()
            assert self.scheduler.num_cached_blocks == 0, "a reset left cached blocks"

    def arrive(self) -> None:
        """One more request, which may be refused."""
        request = self.traffic.request()
        vacancies = self.scheduler.num_vacancies
        try:
            self.scheduler.add(request)
        except RequestError as error:
            self.outcomes[error.code] += 1
        else:
            assert vacancies, "a full queue took one more"
            self.active[request.request_id] = request

    def end(self, request: Request, outcome: str) -> None:
        """A request leaves."""
        self.outcomes["protected"] += request.is_protected
        self.scheduler.finish(request.request_id)
        self.cache.forget(request)
        del self.active[request.request_id]
        self.outcomes[outcome] += 1

    def step(self) -> None:
        """One step, and what must be true of it."""
        self.outcomes["steps"] += 1
        before = list(self.active.values())
        orders = {r.request_id: r.order for r in before if r.state is RequestState.RUNNING}
        decoding = any(before_id in orders and r.num_remaining == 1 for before_id, r in self.active.items())
        first = min(before, key=lambda request: request.order, default=None)
        plan = self.scheduler.schedule()
        self.scheduler.check_integrity()
        self.check_plan(plan)
        self.check_time(plan, decoding)
        self.check_order(plan, orders, first)
        if self.choose.random() < 0.01:  # the executor fails: the requests of this step end
            for chunk in plan.chunks:
                self.end(chunk.request, "failed")
            return
        self.outcomes["copied"] += len(plan.copies)
        self.cache.execute(plan)
        self.scheduler.advance(plan)
        self.observe(plan)
        for chunk in plan.chunks:
            if chunk.completes:
                self.accept(chunk.request)
        self.scheduler.check_integrity()

    def accept(self, request: Request) -> None:
        """One more token, perhaps the last."""
        request.score_prompt = False
        if request.max_tokens:
            request.token_ids.append(self.traffic.token())
        if request.num_output >= request.max_tokens or self.choose.random() < 0.02:
            self.traffic.ended(request)
            self.end(request, "done")

    def observe(self, plan: StepPlan) -> None:
        """Show the scheduler the clock, which may lie; what it has learned stays near the truth."""
        if not plan.chunks:
            return
        work = step_work(plan.chunks)
        self.scheduler.observe(plan, self.traffic.observed(true_seconds(work)))
        self.num_observed += 1
        cost = self.scheduler._cost
        assert all(weight >= 0 for weight in cost.weights), "work costs less than nothing"
        if self.num_observed > _LEARNS_WITHIN:
            ratio = cost.predict(work) / true_seconds(work)
            assert 0.25 < ratio < 4, f"a step is predicted to take {ratio:.2f} of its time"

    def check_plan(self, plan: StepPlan) -> None:
        """A step keeps its bounds, and goes on where each request is."""
        config, chunks = self.config, plan.chunks
        assert bool(chunks) == bool(self.active), "there is work and none is planned"
        assert sum(chunk.length for chunk in chunks) <= config.max_num_batched_tokens, "too many tokens"
        rows = sum(chunk.num_logit_rows for chunk in chunks)
        assert rows <= config.max_num_seqs + config.max_scored_tokens, "too many rows"
        assert len({chunk.request.request_id for chunk in chunks}) == len(chunks), "one is planned twice"
        tables: set[int] = set()
        for chunk in chunks:
            request = chunk.request
            assert request.state is RequestState.RUNNING
            assert chunk.length >= 1, "an empty chunk"
            assert chunk.start == request.num_computed, "a chunk begins elsewhere"
            end = chunk.start + chunk.length
            assert end <= len(request.block_table) * config.block_size, "a token without a block"
            assert chunk.completes == (end == len(request.token_ids)), "a wrong end"
            if request.score_prompt:
                assert chunk.start in (0, self.scored.get(request.request_id, 0)), "a position has no score"
                self.scored[request.request_id] = chunk.start + chunk.length
            tables.update(request.block_table)
        assert tables.issuperset(target for _, target in plan.copies), "a copy for nobody in this step"

    def check_time(self, plan: StepPlan, decoding: bool) -> None:
        """Beside decodes no more is read than the time allows, or the least."""
        work = step_work(plan.chunks)
        readers = sum(chunk.start < len(chunk.request.token_ids) - 1 for chunk in plan.chunks)
        if decoding and work.decodes and work.prefill_tokens > max(LEAST_TOKENS, readers):
            known = StepWork(work.prefill_tokens, work.prefill_pairs, work.decodes, work.context_tokens)
            assert self.scheduler._cost.predict(known) <= self.config.itl_target * 1.0001, (
                "a step is too long"
            )

    def check_order(self, plan: StepPlan, orders: Orders, first: Request | None) -> None:
        """Who decodes gets a token, who goes first goes on, and only those behind leave.

        `orders` are those of the requests that ran before the step.
        """
        planned = {chunk.request.request_id for chunk in plan.chunks}
        before = [self.active[request_id] for request_id in orders]
        running = [request for request in self.active.values() if request.state is RequestState.RUNNING]
        stayed = [request for request in before if request.state is RequestState.RUNNING]
        entered = [request for request in running if request.request_id not in orders]
        for request in stayed:
            assert request.num_remaining > 1 or request.request_id in planned, "a decode was left out"
        for victim in before:
            if victim.state is RequestState.RUNNING:
                continue
            order = orders[victim.request_id]
            assert all(other.order < order for other in stayed if not other.is_protected), "not the last left"
            if entered:  # only an admission lets both happen in one step
                most_urgent = min(other.priority for other in entered)
                assert most_urgent < victim.priority, "it left for an equal"
            assert all(other.priority <= victim.priority for other in entered), "it left for nothing"
        alone = all(other is first or not other.is_protected for other in before)
        if first is not None and first in before and alone:
            assert first.request_id in planned, "the first in order stands still"

    def drain(self) -> None:
        """Without arrivals everything ends within the steps that its tokens take, computed again or not."""
        tokens = sum(len(r.prompt_token_ids) + r.max_tokens for r in self.active.values())
        for _ in range(10 * tokens + 10):
            if not self.active:
                break
            self.step()
        counts = self.scheduler.counts
        self.outcomes += Counter(
            preempted=counts.preemptions, recomputed=counts.recomputed, cached=counts.prefix_hits
        )
        assert not self.active, "some requests were never served"
        assert self.scheduler.num_free_blocks == self.config.num_blocks, "blocks were lost"
        assert self.scheduler.num_running + self.scheduler.num_waiting == 0
