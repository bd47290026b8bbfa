"""Sends a workload to a server and keeps what was measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace

from gristmill.runtime.loadtest.client import CompletionClient
from gristmill.runtime.loadtest.prompts import PromptMaker
from gristmill.runtime.loadtest.records import Record
from gristmill.runtime.loadtest.workload import PlannedRequest, Workload, plan_requests

__all__ = ["Measurement", "replay", "warm_up"]

_WARM_UP_TOKENS = 16
_LEAD_SECONDS = 0.05  # in which a prompt is written before it is due

_Send = Callable[[PlannedRequest, float], Coroutine[None, None, None]]


@dataclass(slots=True)
class Measurement:
    """The finished requests of one load; `client_cpu_s` is what this process used of a processor."""

    workload: Workload
    records: list[Record] = field(default_factory=list)
    duration_s: float = 0.0
    client_cpu_s: float = 0.0
    interrupted: bool = False


async def warm_up(client: CompletionClient, maker: PromptMaker, workload: Workload, requests: int) -> None:
    """Short answers to prompts like the workload's but of other text; failures show in the measurement."""
    like = replace(workload, seed=workload.seed + 1, requests=requests, duration_s=None, rate=None)
    planned = list(plan_requests(replace(like, concurrency=requests or 1)))
    await asyncio.gather(
        *(
            client.complete(maker.make(one.segments), min(_WARM_UP_TOKENS, one.output_tokens))
            for one in planned
        )
    )


async def replay(
    client: CompletionClient,
    maker: PromptMaker,
    workload: Workload,
    *,
    stop: asyncio.Event,
    on_finished: Callable[[], None] = lambda: None,
) -> Measurement:
    """Send everything; when `stop` is set, return at once with what has finished."""
    measurement = Measurement(workload)
    records = measurement.records

    async def send(request: PlannedRequest, start: float) -> None:
        due = None if request.due is None else start + request.due
        records.append(await client.complete(maker.make(request.segments), request.output_tokens, due))
        on_finished()

    cpu, start = time.process_time(), time.perf_counter()
    load = _open_loop if workload.is_open else _closed_loop
    working = asyncio.ensure_future(load(workload, plan_requests(workload), send, start))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    measurement.interrupted = not working.done()
    for task in (working, stopping):
        task.cancel()
    await asyncio.wait({working, stopping})
    measurement.client_cpu_s = time.process_time() - cpu
    measurement.duration_s = max((record.ended for record in records), default=time.perf_counter()) - start
    if not measurement.interrupted:
        working.result()
    return measurement


async def _closed_loop(
    workload: Workload, requests: Iterator[PlannedRequest], send: _Send, start: float
) -> None:
    end = None if workload.duration_s is None else start + workload.duration_s

    async def one_client() -> None:
        for request in requests:
            if end is not None and time.perf_counter() >= end:
                return
            await send(request, start)

    async with asyncio.TaskGroup() as clients:
        for _ in range(workload.concurrency or 1):
            clients.create_task(one_client())


async def _open_loop(
    workload: Workload, requests: Iterator[PlannedRequest], send: _Send, start: float
) -> None:
    async with asyncio.TaskGroup() as sending:
        for request in requests:
            early = start + (request.due or 0.0) - _LEAD_SECONDS - time.perf_counter()
            if early > 0:
                await asyncio.sleep(early)
            sending.create_task(send(request, start))
