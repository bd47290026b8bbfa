"""Static batching, as transformers' `generate` and servers before continuous batching do it.

A batch ends before the next begins, and runs padded until its longest answer
is complete: shorter ones go on being computed, and what they get too much is
thrown away.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from typing import Any

from gristmill.runtime.loadtest.metrics import summarize
from gristmill.runtime.loadtest.replay import Measurement
from gristmill.runtime.loadtest.session import LoadTest
from gristmill.runtime.loadtest.workload import Workload, plan_requests

__all__ = ["measure_static"]


def measure_static(url: str, workload: Workload, batch_size: int) -> dict[str, Any]:
    """The summary of a closed loop whose requests are sent in batches, in the order in which clients asked.

    Latencies count from when a client had its last answer, as in `LoadTest`.
    """
    return summarize(asyncio.run(_measure(url, workload, batch_size)))


async def _measure(url: str, workload: Workload, batch_size: int) -> Measurement:
    client, maker = await LoadTest(url).connect()
    measurement = Measurement(workload)
    requests = plan_requests(workload)
    cpu, start = time.process_time(), time.perf_counter()
    asked = deque([start] * (workload.concurrency or 1))
    while batch := list(itertools.islice(requests, batch_size)):
        longest = max(request.output_tokens for request in batch)
        sending = [
            client.complete(maker.make(request.segments), longest, asked.popleft()) for request in batch
        ]
        records = await asyncio.gather(*sending)
        for record, request in zip(records, batch, strict=True):
            record.output_tokens = min(record.output_tokens, request.output_tokens)
        asked.extend(record.ended for record in records)
        measurement.records += records
    measurement.duration_s = time.perf_counter() - start
    measurement.client_cpu_s = time.process_time() - cpu
    client.close()
    return measurement
