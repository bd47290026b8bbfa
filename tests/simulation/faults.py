"""One bug for each law: planted, the simulation must notice it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gristmill.runtime.core import room, scheduler
from gristmill.runtime.core.block_pool import BlockPool
from gristmill.runtime.core.block_tables import BlockTables
from gristmill.runtime.core.cost_model import CostModel
from gristmill.runtime.core.prefix_cache import CachedBlock, PrefixCache
from gristmill.runtime.core.request import Request
from gristmill.runtime.core.scheduler import Scheduler
from gristmill.runtime.core.step_plan import StepPlan

__all__ = ["FAULTS", "Fault"]

Fault = tuple[object, str, Callable[[Any], Any], str]
"""An object, the name of what is replaced, its replacement made from the original, and what is noticed."""


def _share_uncounted(original: Any) -> Any:
    def share(pool: BlockPool, blocks: Sequence[int]) -> None:
        for block in blocks:
            pool._cached.pop(block, None)

    return share


def _release_leaks(original: Any) -> Any:
    def release(pool: BlockPool, blocks: Sequence[int]) -> None:
        original(pool, blocks)
        if pool._free:
            pool._free.pop()

    return release


def _release_from_the_front(original: Any) -> Any:
    return lambda pool, blocks: original(pool, list(reversed(blocks)))


def _evict_silently(original: Any) -> Any:
    return lambda pool: pool._cached.popitem(last=False)[0]


def _clear_keeps_nodes(original: Any) -> Any:
    def clear(cache: PrefixCache) -> None:
        roots = dict(cache._roots)
        original(cache)
        cache._roots.update(roots)

    return clear


def _match_any_order(original: Any) -> Any:
    return lambda cache, tokens, index: tuple(sorted(original(cache, tokens, index)))


def _extend_to_the_end(original: Any) -> Any:
    return lambda cache, chain, root, tokens, most: original(cache, chain, root, tokens, most + 1)


def _remember_the_evicted(original: Any) -> Any:
    def extend(
        cache: PrefixCache, chain: list[CachedBlock], root: Any, tokens: Sequence[int], most: int
    ) -> None:
        if not chain:
            original(cache, chain, root, tokens, most)

    return extend


def _write_into_the_source(original: Any) -> Any:
    def enter(tables: BlockTables, request: Request) -> None:
        copy = original(tables, request)
        if copy is not None and tables.pool.references(copy[0]):
            tables.pool.release([copy[1]])
            tables.pool.share([copy[0]])
            request.block_table[len(request.chain)] = copy[0]

    return enter


def _share_one_more(original: Any) -> Any:
    def nearest(*args: Any) -> Any:
        found, shared = original(*args)
        return found, shared + (found is not None and shared < len(args[3]))

    return nearest


def _enter_again(original: Any) -> Any:
    def look_up(tables: BlockTables, request: Request) -> None:
        scores, request.score_prompt = request.score_prompt, False
        original(tables, request)
        request.score_prompt = scores

    return look_up


def _index_too_early(original: Any) -> Any:
    def index(tables: BlockTables, request: Request) -> None:
        early = len(request.block_table) * tables._config.block_size > request.num_computed
        request.num_computed += early
        original(tables, request)
        request.num_computed -= early

    return index


def _leave_reserved(original: Any) -> Any:
    def leave(tables: BlockTables, request: Request) -> None:
        request.num_reserved = 0
        original(tables, request)

    return leave


def _promise_twice(original: Any) -> Any:
    return property(lambda pool: len(pool._free) + len(pool._cached))


def _leave_computed(original: Any) -> Any:
    def leave(tables: BlockTables, request: Request) -> None:
        computed = request.num_computed
        original(tables, request)
        request.num_computed = computed

    return leave


def _equals_leave(original: Any) -> Any:
    def less_urgent(request: Request, running: Sequence[Request]) -> Iterator[Request]:
        return (other for other in reversed(running) if not other.is_protected)

    return less_urgent


def _forget_one_decode(original: Any) -> Any:
    return lambda self: original(self)[:-1]


def _drop_copies(original: Any) -> Any:
    return lambda self: StepPlan(original(self).chunks)


def _finish_twice_there(original: Any) -> Any:
    def finish(self: Scheduler, request_id: str) -> None:
        request = self._requests[request_id]
        original(self, request_id)
        self._waiting.insert(0, request)

    return finish


FAULTS: Mapping[str, Fault] = {
    "a shared block is not counted": (BlockPool, "share", _share_uncounted, "lost count"),
    "a free block is lost": (BlockPool, "release", _release_leaks, "not conserved"),
    "a prompt's beginning is evicted first": (
        BlockPool,
        "release",
        _release_from_the_front,
        "outlives|before its continuations",
    ),
    "an evicted block stays indexed": (
        BlockPool,
        "_evict",
        _evict_silently,
        "its index disagree|other tokens",
    ),
    "a reset leaves the tree": (PrefixCache, "clear", _clear_keeps_nodes, "disagree"),
    "tokens match in any order": (PrefixCache, "block_tokens", _match_any_order, "other tokens"),
    "the last token is taken from the cache": (
        PrefixCache,
        "extend",
        _extend_to_the_end,
        "an empty chunk|a decode was left out|none is planned",
    ),
    "an evicted block is still offered": (
        PrefixCache,
        "extend",
        _remember_the_evicted,
        "before its continuations|can't be shared",
    ),
    "a block is written where it should be copied": (
        BlockTables,
        "enter",
        _write_into_the_source,
        "other tokens|two requests write",
    ),
    "a partial hit is one token too long": (
        PrefixCache,
        "nearest",
        _share_one_more,
        "other tokens",
    ),
    "salts are ignored": (Request, "cache_root", lambda _: property(lambda self: ()), "other tokens"),
    "a scored prompt is taken from the cache": (BlockTables, "look_up", _enter_again, "no score"),
    "a block is indexed before it is computed": (
        BlockTables,
        "index",
        _index_too_early,
        "cached blocks of|other tokens",
    ),
    "a copy is forgotten": (Scheduler, "schedule", _drop_copies, "other tokens"),
    "reserved blocks are never given back": (BlockTables, "leave", _leave_reserved, "not conserved"),
    "reserved blocks are promised again": (
        BlockPool,
        "num_free",
        _promise_twice,
        "not conserved|pool is empty|KeyError|dictionary is empty",
    ),
    "a preempted request keeps its progress": (BlockTables, "leave", _leave_computed, "waits and holds"),
    "a token has no block": (
        BlockTables,
        "grow",
        lambda _: lambda *args: True,
        "without a block|holds 0 blocks",
    ),
    "equals leave for newcomers": (
        room,
        "_less_urgent",
        _equals_leave,
        "for an equal|stands still",
    ),
    "requests enter without room": (
        scheduler,
        "victims_for",
        lambda _: lambda *args: [],
        "pool is empty|requests run",
    ),
    "nobody is ever protected": (
        Request,
        "is_protected",
        lambda _: property(lambda self: False),
        "was preempted 4 times",
    ),
    "the order is by arrival alone": (
        Request,
        "order",
        lambda _: property(lambda self: (0, False, -self.arrival)),
        "stands still|out of order|for nothing|not the last|for an equal|never served",
    ),
    "a decode is left out": (Scheduler, "_grow_decodes", _forget_one_decode, "a decode was left out"),
    "everyone waits for another": (
        Scheduler,
        "_must_wait",
        lambda _: lambda self, *args: True,
        "none is planned",
    ),
    "the queue has no end": (
        Scheduler,
        "check_vacancies",
        lambda _: lambda self, count, tokens: None,
        "a full queue",
    ),
    "an ended request is kept": (Scheduler, "finish", _finish_twice_there, "lost, or at two places"),
    "the time is not kept": (
        scheduler,
        "largest_budget",
        lambda _: lambda least, most, fits: most,
        "a step is too long",
    ),
    "a prompt gets nothing": (
        scheduler,
        "share_tokens",
        lambda original: lambda readers, wants, tokens: [0 for _ in readers],
        "an empty chunk",
    ),
    "a step has no bounds": (
        scheduler,
        "share_tokens",
        lambda original: lambda readers, wants, tokens: list(wants),
        "too many tokens|a step is too long",
    ),
    "the clock is read in milliseconds": (
        CostModel,
        "observe",
        lambda original: lambda self, work, seconds: original(self, work, seconds * 1000),
        "of its time",
    ),
    "work may cost less than nothing": (
        CostModel,
        "_refit",
        lambda original: lambda self: (original(self), self._weights.__setitem__(3, -1e-4))[0],
        "less than nothing",
    ),
}
