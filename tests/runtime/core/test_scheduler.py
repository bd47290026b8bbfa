"""The scheduler's policy, one property a test."""

from __future__ import annotations

from typing import Any

import grimp
import pytest

from gristmill.runtime.core.config import SchedulerConfig
from gristmill.runtime.core.request import MOST_PREEMPTIONS, Request, RequestState
from gristmill.runtime.core.scheduler import Scheduler
from gristmill.runtime.core.step_plan import Chunk
from gristmill.runtime.errors import InputError, InternalError, RequestError


def make_scheduler(
    *,
    num_blocks: int = 16,
    block_size: int = 4,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 16,
    max_scored_tokens: int = 128,
    max_waiting: int = 8,
    max_waiting_tokens: int = 1000,
    prefix_caching: bool = False,
) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=num_blocks * block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_scored_tokens=max_scored_tokens,
            max_waiting=max_waiting,
            max_waiting_tokens=max_waiting_tokens,
            prefix_caching=prefix_caching,
        )
    )


def make_request(
    name: str, length: int, max_tokens: int = 4, *, score: bool = False, priority: int = 0
) -> Request:
    return Request(name, tuple(range(length)), max_tokens, score_prompt=score, priority=priority)


def run_step(scheduler: Scheduler) -> list[tuple[str, int, int, str]]:
    """Execute one step with token 7 as every answer; returns (id, start, length, logits) of each chunk."""
    plan = scheduler.schedule()
    scheduler.check_integrity()
    scheduler.advance(plan)
    for chunk in plan.chunks:
        accept_token(scheduler, chunk)
    scheduler.check_integrity()
    return [(chunk.request.request_id, chunk.start, chunk.length, chunk.logits) for chunk in plan.chunks]


def accept_token(scheduler: Scheduler, chunk: Chunk) -> None:
    request = chunk.request
    if not chunk.completes:
        return
    request.score_prompt = False
    if request.max_tokens:
        request.token_ids.append(7)
    if request.num_output >= request.max_tokens:
        scheduler.finish(request.request_id)


def test_decodes_come_first_and_prefill_takes_the_rest_of_the_budget() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=6)
    scheduler.add(make_request("a", 5))
    run_step(scheduler)
    scheduler.add(make_request("b", 9))
    assert run_step(scheduler) == [("a", 5, 1, "last"), ("b", 0, 5, "none")]
    assert run_step(scheduler) == [("a", 6, 1, "last"), ("b", 5, 4, "last")]


def test_prompts_are_computed_in_order_of_arrival() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    scheduler.add(make_request("a", 6))
    scheduler.add(make_request("b", 6))
    assert [(name, length) for name, _, length, _ in run_step(scheduler)] == [("a", 6), ("b", 2)]


def test_no_more_requests_run_than_max_num_seqs() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        scheduler.add(make_request(name, 2))
    run_step(scheduler)
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)


def test_nobody_enters_on_the_blocks_that_running_requests_need_next() -> None:
    """Three blocks are held, one is free: a prompt of one block would only be thrown out again."""
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    scheduler.add(make_request("a", 10, max_tokens=4))
    run_step(scheduler)
    scheduler.add(make_request("b", 2, max_tokens=2))
    assert [name for _ in range(4) for name, *_ in run_step(scheduler)] == ["a", "a", "a", "b"]


def test_a_waiting_request_holds_no_blocks_while_the_budget_is_spent() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=4)
    scheduler.add(make_request("a", 8))
    scheduler.add(make_request("b", 4))
    run_step(scheduler)
    assert scheduler.num_running == 1


def test_the_newest_request_is_preempted_and_computes_again() -> None:
    scheduler = make_scheduler(num_blocks=5, max_num_batched_tokens=32)
    first, second = make_request("a", 8, max_tokens=8), make_request("b", 4, max_tokens=8)
    scheduler.add(first)
    scheduler.add(second)
    while second.num_preemptions == 0:
        run_step(scheduler)
    assert (first.state, second.state) == (RequestState.RUNNING, RequestState.WAITING)
    assert second.num_output > 0
    while second.state is not RequestState.RUNNING:
        run_step(scheduler)
    assert first.state is RequestState.FINISHED


def test_a_preempted_request_goes_before_those_that_wait() -> None:
    scheduler = make_scheduler(num_blocks=6, max_num_seqs=2, max_num_batched_tokens=32)
    first, second = make_request("a", 8, max_tokens=12), make_request("b", 8, max_tokens=12)
    for request in (first, second, make_request("c", 1)):
        scheduler.add(request)
    order = []
    while scheduler.num_running + scheduler.num_waiting:
        order += [name for name, start, _, _ in run_step(scheduler) if start == 0]
    assert order == ["a", "b", "b", "c"]


def test_prompts_of_one_priority_share_a_step_equally() -> None:
    scheduler = make_scheduler(num_blocks=100, max_num_batched_tokens=64)
    for name, length in (("a", 100), ("b", 60), ("c", 10)):
        scheduler.add(make_request(name, length))
    assert [(name, length) for name, _, length, _ in run_step(scheduler)] == [("a", 27), ("b", 27), ("c", 10)]


def test_a_more_urgent_prompt_leaves_the_others_a_token_each() -> None:
    scheduler = make_scheduler(num_blocks=100, max_num_batched_tokens=32)
    scheduler.add(make_request("a", 60))
    run_step(scheduler)
    scheduler.add(make_request("urgent", 60, priority=-1))
    assert [(name, length) for name, _, length, _ in run_step(scheduler)] == [("urgent", 31), ("a", 1)]


def test_a_few_prompts_are_read_at_once_and_more_if_those_leave_tokens_over() -> None:
    for length, together in ((60, 4), (10, 7)):
        scheduler = make_scheduler(
            num_blocks=1000, max_num_seqs=40, max_num_batched_tokens=64, max_waiting=40
        )
        for index in range(12):
            scheduler.add(make_request(str(index), length))
        assert len(run_step(scheduler)) == together


def test_a_third_long_prompt_waits_and_a_short_one_overtakes_it() -> None:
    scheduler = make_scheduler(num_blocks=1000, max_num_batched_tokens=64)
    for name, length in (("a", 200), ("b", 200), ("c", 200), ("short", 5)):
        scheduler.add(make_request(name, length))
    assert [name for name, *_ in run_step(scheduler)] == ["a", "b", "short"]


def test_a_more_urgent_request_takes_blocks_of_the_least_urgent_first() -> None:
    scheduler = make_scheduler(num_blocks=9, max_num_batched_tokens=64)
    requests = [make_request(name, 8, priority=p) for name, p in (("a", 1), ("b", 2), ("c", 1))]
    for request in requests:
        scheduler.add(request)
    run_step(scheduler)
    scheduler.add(make_request("urgent", 12, priority=0))
    assert "urgent" in [name for name, *_ in run_step(scheduler)]
    assert [request.num_preemptions for request in requests] == [0, 1, 0]


def test_nobody_leaves_for_a_request_that_would_not_fit_even_so() -> None:
    scheduler = make_scheduler(num_blocks=6, max_num_batched_tokens=64)
    scheduler.add(make_request("equal", 12, max_tokens=8, priority=0))
    scheduler.add(make_request("less", 4, max_tokens=8, priority=1))
    run_step(scheduler)
    scheduler.add(make_request("urgent", 20, max_tokens=1, priority=0))
    run_step(scheduler)
    assert scheduler.counts.preemptions == 0


def test_a_request_that_was_preempted_often_enters_with_all_its_blocks_and_stays() -> None:
    scheduler = make_scheduler(num_blocks=8, max_num_seqs=1)
    bulk = make_request("bulk", 8, max_tokens=16, priority=9)
    scheduler.add(bulk)
    for index in range(MOST_PREEMPTIONS):
        run_step(scheduler)
        scheduler.add(make_request(f"urgent {index}", 4, max_tokens=1))
        while bulk.state is not RequestState.RUNNING or bulk.num_preemptions == index:
            run_step(scheduler)
    assert len(bulk.block_table) + bulk.num_reserved == 6
    scheduler.add(make_request("later", 4, max_tokens=1))
    while bulk.state is not RequestState.FINISHED:
        assert run_step(scheduler)[0][0] == "bulk"
    assert (bulk.num_preemptions, bulk.num_output) == (MOST_PREEMPTIONS, 16)


def test_prompts_wait_while_another_computes_what_they_share() -> None:
    scheduler = make_scheduler(num_blocks=100, max_num_batched_tokens=20, prefix_caching=True)
    for name in ("a", "b", "c"):
        scheduler.add(make_request(name, 30, max_tokens=1))
    assert run_step(scheduler) == [("a", 0, 20, "none")]
    assert run_step(scheduler) == [("a", 20, 10, "last"), ("b", 20, 10, "last")]
    assert run_step(scheduler) == [("c", 28, 2, "last")]


def test_a_prompt_does_not_wait_for_a_less_urgent_one() -> None:
    scheduler = make_scheduler(num_blocks=100, max_num_batched_tokens=40, prefix_caching=True)
    scheduler.add(make_request("a", 60, priority=1))
    run_step(scheduler)
    scheduler.add(make_request("urgent", 100, priority=0))
    assert [(name, start) for name, start, *_ in run_step(scheduler)] == [("urgent", 40), ("a", 40)]


def test_the_queue_is_bounded_by_prompt_tokens_but_takes_one_request_of_any_length() -> None:
    scheduler = make_scheduler(num_blocks=100, max_num_seqs=1, max_waiting_tokens=10)
    scheduler.add(make_request("a", 50))
    run_step(scheduler)
    scheduler.add(make_request("b", 30))
    with pytest.raises(RequestError, match="30 waiting prompt tokens and 1 new ones") as caught:
        scheduler.add(make_request("c", 1))
    assert caught.value.code == "queue_full"
    assert scheduler.num_waiting_tokens == 30


def test_the_expected_wait_grows_with_the_prompts_that_wait() -> None:
    scheduler = make_scheduler(num_blocks=1000)
    waits = [scheduler.retry_after()]
    for name in "abc":
        scheduler.add(make_request(name, 200))
        waits.append(scheduler.retry_after())
    assert waits == sorted(set(waits))


def test_a_prompt_that_can_never_fit_is_refused_with_both_numbers() -> None:
    scheduler = make_scheduler(num_blocks=2, block_size=4)
    with pytest.raises(RequestError, match=r"found 9 prompt tokens; expected a context of 8") as caught:
        scheduler.add(make_request("a", 9))
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.field == "prompt"


def test_an_answer_that_can_never_fit_is_refused_with_what_would() -> None:
    scheduler = make_scheduler(num_blocks=2, block_size=4)
    with pytest.raises(RequestError, match="ask for at most 3 tokens") as caught:
        scheduler.add(make_request("a", 5, max_tokens=4))
    assert caught.value.field == "max_tokens"


def test_a_prompt_that_fills_the_context_can_be_scored() -> None:
    scheduler = make_scheduler(num_blocks=2, block_size=4)
    scheduler.add(make_request("a", 8, max_tokens=0, score=True))
    assert run_step(scheduler) == [("a", 0, 8, "all")]
    assert scheduler.num_running == 0


def test_scored_positions_of_a_step_are_bounded() -> None:
    scheduler = make_scheduler(max_scored_tokens=5)
    scheduler.add(make_request("a", 7, score=True))
    scheduler.add(make_request("b", 7, score=True))
    assert run_step(scheduler) == [("a", 0, 5, "all")]
    assert run_step(scheduler) == [("a", 5, 2, "all"), ("b", 0, 3, "all")]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="prompt is empty"):
        make_scheduler().add(make_request("a", 0))


def test_a_full_queue_is_refused_by_code() -> None:
    scheduler = make_scheduler(max_num_seqs=1, max_waiting=2)
    for name in "abc":
        scheduler.add(make_request(name, 1))
    with pytest.raises(RequestError, match="queue is full") as caught:
        scheduler.add(make_request("d", 1))
    assert caught.value.code == "queue_full"
    assert scheduler.num_vacancies == 0


def test_an_id_that_is_active_is_refused() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 1))
    with pytest.raises(RequestError, match="is active"):
        scheduler.add(make_request("a", 1))


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_an_abort_at_any_moment_frees_all_blocks(steps: int) -> None:
    scheduler = make_scheduler(max_num_batched_tokens=4)
    scheduler.add(make_request("a", 6))
    for _ in range(steps):
        run_step(scheduler)
    scheduler.finish("a")
    scheduler.check_integrity()
    assert scheduler.num_free_blocks == 16


def test_integrity_notices_blocks_beyond_the_tokens() -> None:
    scheduler = make_scheduler()
    request = make_request("a", 4)
    scheduler.add(request)
    run_step(scheduler)
    request.block_table.extend(scheduler._tables.pool.allocate(2))
    with pytest.raises(InternalError, match="blocks for 4 computed tokens"):
        scheduler.check_integrity()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_blocks": 0}, "num_blocks is too small"),
        ({"max_num_batched_tokens": 3}, "at least max_num_seqs = 4"),
        ({"max_waiting": -1}, "max_waiting is negative"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_scheduler(**changes)


def test_the_core_needs_neither_torch_nor_numpy() -> None:
    """Not even through what it imports; the engine, which does, shows that the graph would tell."""
    graph = grimp.build_graph("gristmill", include_external_packages=True, cache_dir=None)

    def reach(module: str) -> set[str]:
        return {name for name in ("torch", "numpy") if graph.find_shortest_chain(module, name)}

    core = [module for module in graph.modules if module.startswith("gristmill.runtime.core.")]
    assert core
    assert not set().union(*(reach(module) for module in core))
    assert "numpy" in reach("gristmill.runtime.engine")


def test_a_prompt_takes_its_blocks_as_it_is_read() -> None:
    scheduler = make_scheduler(num_blocks=8, block_size=2, max_num_batched_tokens=4, max_num_seqs=2)
    request = make_request("long", 12)
    scheduler.add(request)
    scheduler.advance(scheduler.schedule())
    assert (len(request.block_table), scheduler.num_held_blocks, scheduler.num_free_blocks) == (2, 2, 2)
