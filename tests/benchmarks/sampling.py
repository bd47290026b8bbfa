"""Choosing the tokens of a step of 32 rows, beside the step itself: `make bench-sampling`.

Each setting chooses from the demo model's own logits after prompts of 256
tokens, on the threads of the engine, as the server does. Prints milliseconds
and the share of the step; the best of a few repeats counts. Writes
build/bench/sampling.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.executors.base import KVCacheConfig, SequenceStep
from gristmill.runtime.executors.load import open_engine
from gristmill.runtime.executors.native.executor import NativeExecutor
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.sampling.sampler import sample_rows
from gristmill.runtime.sampling.state import SamplerState, make_sampler_state
from gristmill.runtime.settings import EngineSettings
from tests.benchmarks.demo_engine import demo_engine
from tests.benchmarks.demo_model import BUILD
from tests.benchmarks.table import result_row, table_line, write_rows

ROWS = 32
CONTEXT = 256
BLOCK = 16
REPEATS = 20
WANTED = 0.03  # of a step
COMMAND = "make bench-sampling"

SETTINGS: Mapping[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(),
    "top-p 0.95": SamplingParams(top_p=0.95),
    "top-k 50": SamplingParams(top_k=50),
    "top-k 50, top-p 0.95": SamplingParams(top_k=50, top_p=0.95),
    "top-k 1000, penalties": SamplingParams(top_k=1000, presence_penalty=0.5, repetition_penalty=1.1),
    "greedy, 5 logprobs": SamplingParams(temperature=0.0, logprobs=5),
}


def main() -> None:
    executor = _open()
    try:
        prompts = np.random.default_rng(0).integers(0, executor.plan.vocab_size, (ROWS, CONTEXT)).tolist()
        tables = np.arange(ROWS * _blocks()).reshape(ROWS, _blocks()).tolist()
        for prompt, table in zip(prompts, tables, strict=True):
            executor.execute([SequenceStep(prompt, 0, table, "none")])
        batch = [SequenceStep([1], CONTEXT, table) for table in tables]
        step = _best(lambda: executor.execute(batch))
        logits = executor.execute(batch)  # not a copy: the sampler knows the maxima of a step's own
        print(table_line(("", "ms", "of a step")))
        print(table_line((f"step, {ROWS} rows", f"{step * 1e3:.2f}", "")))
        rows = []
        for name, params in SETTINGS.items():
            seconds = _sampling_seconds(executor, logits, params)
            print(table_line((name, f"{seconds * 1e3:.2f}", f"{seconds / step:.1%}")))
            rows.append(
                result_row(f"sampling: {name}", seconds * 1e3, "step", step * 1e3, "ms", COMMAND, WANTED)
            )
    finally:
        executor.close()
    write_rows(BUILD / "sampling.json", rows)


def _open() -> NativeExecutor:
    opened = open_engine(demo_engine(BUILD / "engine", "native-x86"))
    settings, options = opened.modes.choose(EngineSettings())
    executor = opened.load(KVCacheConfig(ROWS * _blocks(), BLOCK, settings.kv_dtype), options)
    assert isinstance(executor, NativeExecutor)
    return executor


def _sampling_seconds(executor: NativeExecutor, logits: NDArray[np.float32], params: SamplingParams) -> float:
    states = [_state(params, row, executor.plan.vocab_size) for row in range(ROWS)]
    return _best(lambda: sample_rows(logits, range(ROWS), states, executor))


def _state(params: SamplingParams, row: int, vocab_size: int) -> SamplerState:
    return make_sampler_state(
        params, seed=row, index=0, prompt_token_ids=(1, 2), end_token_ids=(0,), vocab_size=vocab_size
    )


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _blocks() -> int:
    return -(-(CONTEXT + 1) // BLOCK)


if __name__ == "__main__":
    main()
