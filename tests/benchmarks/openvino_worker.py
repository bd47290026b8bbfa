"""Runs in OpenVINO's environment: measures one workload a line of its input, until the input ends.

A line in is JSON: batch, context (prompt tokens of each sequence) and steps (0
times the prompts alone, to the first token of each). A line out is JSON: tokens
and seconds. The first line out says what was loaded.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]


def main() -> None:
    """Load what the command line says: folder, precision, threads, cache in GB, batched tokens."""
    folder, precision = sys.argv[1:3]
    threads, cache, batched = map(int, sys.argv[3:6])
    properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
    if precision != "default":
        properties["INFERENCE_PRECISION_HINT"] = precision
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = cache
    scheduler.max_num_batched_tokens = batched
    scheduler.max_num_seqs = 256
    scheduler.enable_prefix_caching = False
    start = time.perf_counter()
    pipeline = openvino_genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
    _say(
        {
            "version": openvino.__version__,
            "load_seconds": time.perf_counter() - start,
            "kv_cache": openvino.Core().get_property("CPU", "KV_CACHE_PRECISION").to_string(),
        }
    )
    for line in sys.stdin:
        asked = json.loads(line)
        _say(_measure(pipeline, asked["batch"], asked["context"], asked["steps"]))


def _measure(pipeline: Any, batch: int, context: int, steps: int) -> dict[str, float]:
    config = openvino_genai.GenerationConfig()
    config.ignore_eos = True
    # Early sequences decode while the later ones' prompts are read: none may end before the last is timed.
    config.max_new_tokens = 2 + steps + (batch * context // 256 if steps else 0)
    start = time.perf_counter()
    handles = [
        pipeline.add_request(index, openvino.Tensor(_prompt(context)), config) for index in range(batch)
    ]
    waiting = set(range(batch))
    while waiting:
        pipeline.step()
        waiting -= {index for index in waiting if _read(handles[index])}
    seconds, tokens = time.perf_counter() - start, batch * context
    if steps:
        for handle in handles:
            _read(handle)
        start = time.perf_counter()
        for _ in range(steps):
            pipeline.step()
        seconds = time.perf_counter() - start
        tokens = sum(_read(handle) for handle in handles)
    for handle in handles:
        handle.cancel()
    while pipeline.has_non_finished_requests():
        pipeline.step()
    return {"tokens": tokens, "seconds": seconds}


def _prompt(length: int) -> Any:
    return np.array([[random.randrange(1000, 40000) for _ in range(length)]], dtype=np.int64)


def _read(handle: Any) -> int:
    """Take what a sequence has generated since the last time; how many tokens that is."""
    count = 0
    while handle.can_read():
        count += sum(len(output.generated_ids) for output in handle.read().values())
    return count


def _say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
