"""The laws that a scheduler's books obey between steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from gristmill.runtime.core.config import SchedulerConfig
from gristmill.runtime.core.request import MOST_PREEMPTIONS, Request, RequestState

__all__ = ["problems"]


def problems(
    config: SchedulerConfig, running: Sequence[Request], waiting: Sequence[Request], known: Sequence[Request]
) -> Iterator[str]:
    """What is wrong with who runs and waits, and with what each holds; nothing if all is well."""
    if sorted(map(id, (*running, *waiting))) != sorted(map(id, known)):
        yield "a request is lost, or at two places"
    for name, requests in (("running", running), ("waiting", waiting)):
        if any(first.order >= second.order for first, second in pairwise(requests)):
            yield f"{name} requests are out of order"
    if len(running) > config.max_num_seqs:
        yield f"{len(running)} requests run"
    for request in waiting:
        yield from _problems_of_waiting(request)
    for request in running:
        yield from _problems_of_running(config, request)
    for request in known:
        if request.num_preemptions > MOST_PREEMPTIONS:
            yield f"{request.request_id} was preempted {request.num_preemptions} times"


def _problems_of_waiting(request: Request) -> Iterator[str]:
    if request.state is not RequestState.WAITING:
        yield f"{request.request_id} waits as {request.state.value}"
    if request.block_table or request.num_computed or request.num_reserved:
        yield f"{request.request_id} waits and holds blocks"


def _problems_of_running(config: SchedulerConfig, request: Request) -> Iterator[str]:
    name, table = request.request_id, request.block_table
    if request.state is not RequestState.RUNNING or request.num_remaining < 0:
        yield f"{name} does not run"
    most = config.blocks_for(max(len(request.token_ids), request.num_held_tokens))
    promised = len(table) + request.num_reserved
    if not config.blocks_for(request.num_computed) <= len(table) <= promised <= most:
        yield f"{name} holds {len(table)} blocks for {request.num_computed} computed tokens"
    if request.num_remaining > 1 and promised < config.blocks_for(len(request.token_ids)):
        yield f"{name} has {promised} blocks for {len(request.token_ids)} tokens"
    if len(set(table)) != len(table):
        yield f"{name} holds a block twice"
    full = request.num_computed // config.block_size
    if len(request.chain) != (full if request.indexes else 0):
        yield f"{name} has {len(request.chain)} cached blocks of {full} full ones"
    tokens = request.token_ids
    for index, cached in enumerate(request.chain):
        start = index * config.block_size
        if cached.block != table[index] or not cached.is_cached:
            yield f"{name} does not hold its cached block {cached.block}"
        elif cached.tokens != tuple(tokens[start : start + config.block_size]):
            yield f"{name} holds a cached block of other tokens"
