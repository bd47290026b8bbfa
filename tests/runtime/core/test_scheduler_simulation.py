"""Random arrivals, aborts and tiny pools: the laws hold after every step, and everyone is served."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gristmill.runtime.core.request import Request
from gristmill.runtime.core.scheduler import Scheduler, SchedulerConfig
from gristmill.runtime.errors import RequestError


class Simulation:
    """Drives a scheduler like an engine would, keeping its own books of who should be where."""

    def __init__(self, seed: int, config: SchedulerConfig) -> None:
        self.random = random.Random(seed)
        self.config = config
        self.scheduler = Scheduler(config)
        self.active: dict[str, Request] = {}
        self.outcomes: Counter[str] = Counter()

    def arrive(self) -> None:
        prompt = self.random.randint(1, self.config.max_model_len + 2)
        answer = self.random.randint(0, self.config.max_model_len // 2)
        name = str(sum(self.outcomes.values()) + len(self.active))
        request = Request(name, tuple(range(prompt)), answer, score_prompt=self.random.random() < 0.2)
        try:
            self.scheduler.add(request)
        except RequestError as error:
            self.outcomes[error.code] += 1
        else:
            self.active[name] = request

    def abort(self) -> None:
        if self.active:
            name = self.random.choice(sorted(self.active))
            self.end(self.active[name], "aborted")

    def end(self, request: Request, outcome: str) -> None:
        self.scheduler.finish(request.request_id)
        del self.active[request.request_id]
        self.outcomes[outcome] += 1

    def step(self) -> None:
        oldest = min(self.active.values(), key=lambda request: request.arrival, default=None)
        before = 0 if oldest is None else oldest.num_computed
        chunks = self.scheduler.schedule()
        self.scheduler.check_integrity()
        assert sum(chunk.length for chunk in chunks) <= self.config.max_num_batched_tokens
        rows = sum({"none": 0, "last": 1, "all": chunk.length}[chunk.logits] for chunk in chunks)
        assert rows <= self.config.max_num_seqs + self.config.max_scored_tokens
        assert len({id(chunk.request) for chunk in chunks}) == len(chunks)
        for chunk in chunks:
            held = len(chunk.request.block_table) * self.config.block_size
            assert chunk.start == chunk.request.num_computed
            assert chunk.start + chunk.length <= held
        if self.random.random() < 0.02:  # the executor fails: the requests of this step end
            for chunk in chunks:
                self.end(chunk.request, "failed")
            return
        self.scheduler.advance(chunks)
        if oldest is not None:
            assert oldest.num_computed > before, "the oldest request made no progress"
        for chunk in chunks:
            if chunk.completes:
                self.accept(chunk.request)

    def accept(self, request: Request) -> None:
        request.score_prompt = False
        if request.max_tokens:
            request.token_ids.append(1)
        if request.num_output >= request.max_tokens or self.random.random() < 0.02:
            self.end(request, "done")


@pytest.mark.parametrize("seed", range(8))
def test_laws_hold_over_random_traffic(seed: int) -> None:
    choose = random.Random(seed)
    block_size = choose.choice([1, 2, 4, 7])
    num_blocks = choose.randint(4, 24)
    max_num_seqs = choose.randint(1, 6)
    config = SchedulerConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=num_blocks * block_size - choose.randint(0, 3),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + choose.randint(0, 20),
        max_scored_tokens=choose.randint(1, 8),
        max_waiting=choose.randint(0, 6),
    )
    simulation = Simulation(seed, config)
    for _ in range(1000):
        if choose.random() < 0.3:
            simulation.arrive()
        if choose.random() < 0.05:
            simulation.abort()
        simulation.step()
        simulation.scheduler.check_integrity()
    for _ in range(5000):
        if not simulation.active:
            break
        simulation.step()
    assert not simulation.active, "some requests were never served"
    assert simulation.scheduler.num_free_blocks == config.num_blocks
    assert simulation.outcomes["done"] > 10
