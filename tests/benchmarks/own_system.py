"""Gristmill's engine as a system of the benchmark: its executor, one call a step, sampling greedily."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.executors.base import ExecutorInfo, KVCacheConfig, SequenceStep
from gristmill.runtime.executors.load import open_engine
from gristmill.runtime.executors.native.engine_file import EngineFile, StoredBlock, read_engine_file
from gristmill.runtime.executors.native.executor import NativeExecutor
from gristmill.runtime.memory import kv_bytes_per_token
from gristmill.runtime.model_plan import ModelPlan
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.sampling.sampler import RowSampler, SampledToken, sample_rows
from gristmill.runtime.sampling.state import SamplerState, make_sampler_state
from gristmill.runtime.settings import Compute, EngineSettings
from tests.benchmarks.roofline import CHUNK
from tests.benchmarks.workloads import Storage, Workload

__all__ = ["OwnSystem"]

_BLOCK = 16


class OwnSystem:
    """An engine folder loaded with a cache that holds the largest of `workloads`."""

    def __init__(self, folder: EngineFolder, settings: EngineSettings, workloads: Sequence[Workload]) -> None:
        opened = open_engine(folder)
        settings, options = opened.modes.choose(settings)
        blocks = max(workload.batch * _blocks(workload) for workload in workloads)
        start = time.perf_counter()
        self._executor = opened.load(KVCacheConfig(blocks, _BLOCK, settings.kv_dtype), options)
        self.load_seconds = time.perf_counter() - start
        self.name = f"gristmill {folder.target}"
        self.compute: Compute = options.compute
        weights = opened.weight_bytes(options.compute)
        if folder.target == "native-x86":
            weights = _read_in_a_step(read_engine_file(folder.path))
        self.storage = Storage(
            weights, kv_bytes_per_token(self.plan, settings.kv_dtype), f"KV {settings.kv_dtype}"
        )
        self._states = [_greedy_state(self.plan.vocab_size) for _ in range(max(w.batch for w in workloads))]
        self._random = np.random.default_rng(0)
        self._filled: tuple[int, int] | None = None

    @property
    def plan(self) -> ModelPlan:
        """The model."""
        return self._executor.plan

    @property
    def info(self) -> ExecutorInfo:
        """What computes it."""
        return self._executor.info

    def measure(self, workload: Workload) -> float:
        """Prompts to the first token of each, or steps after prompts that stay in the cache."""
        if workload.kind == "prefill":
            return workload.tokens / self._prefill(workload)
        if self._filled != (workload.batch, workload.context):
            self._prefill(workload)
        return workload.tokens / self._decode(workload)

    def profile(self) -> dict[str, float]:
        """Seconds by operation since a native engine was loaded; others refuse the option."""
        assert isinstance(self._executor, NativeExecutor)
        return self._executor.profile()

    def close(self) -> None:
        """Free the engine."""
        self._executor.close()

    def _prefill(self, workload: Workload) -> float:
        """Seconds to read all prompts, in steps of up to `CHUNK` tokens."""
        prompts = self._random.integers(0, self.plan.vocab_size, (workload.batch, workload.context)).tolist()
        tables = _tables(workload)
        pieces = [
            (index, start, min(start + CHUNK, workload.context))
            for index in range(workload.batch)
            for start in range(0, workload.context, CHUNK)
        ]
        start_time = time.perf_counter()
        for step in _steps(pieces):
            batch = [
                SequenceStep(
                    prompts[index][start:end],
                    start,
                    tables[index],
                    logits="last" if end == workload.context else "none",
                )
                for index, start, end in step
            ]
            logits = self._executor.execute(batch)
            if len(logits):
                self._choose(logits)
        self._filled = (workload.batch, workload.context)
        return time.perf_counter() - start_time

    def _decode(self, workload: Workload) -> float:
        """Seconds for `steps` tokens of every sequence."""
        tables = _tables(workload)
        tokens = self._random.integers(0, self.plan.vocab_size, workload.batch).tolist()
        start_time = time.perf_counter()
        for position in range(workload.context, workload.context + workload.steps):
            batch = [
                SequenceStep([token], position, table) for token, table in zip(tokens, tables, strict=True)
            ]
            tokens = self._choose(self._executor.execute(batch))
        return time.perf_counter() - start_time

    def _choose(self, logits: NDArray[np.float32]) -> list[int]:
        """The most probable token of each row, found as a server finds it."""
        sampler = self._executor if isinstance(self._executor, RowSampler) else None
        chosen = sample_rows(logits, range(len(logits)), self._states[: len(logits)], sampler)
        return [outcome.token_id for outcome in chosen if isinstance(outcome, SampledToken)]


def _greedy_state(vocab_size: int) -> SamplerState:
    return make_sampler_state(
        SamplingParams(temperature=0.0),
        seed=0,
        index=0,
        prompt_token_ids=(),
        end_token_ids=(),
        vocab_size=vocab_size,
    )


def _blocks(workload: Workload) -> int:
    return -(-(workload.context + workload.steps) // _BLOCK)


def _tables(workload: Workload) -> list[list[int]]:
    """Block tables of all sequences, one after the other."""
    blocks = _blocks(workload)
    return [list(range(index * blocks, (index + 1) * blocks)) for index in range(workload.batch)]


def _steps(pieces: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Pieces of prompts (sequence, start, end) in steps of up to `CHUNK` tokens, no sequence twice in one."""
    steps: list[list[tuple[int, int, int]]] = []
    room, last = 0, -1
    for index, start, end in pieces:
        if end - start > room or index == last:
            steps.append([])
            room = CHUNK
        steps[-1].append((index, start, end))
        room, last = room - (end - start), index
    return steps


def _read_in_a_step(engine: EngineFile) -> int:
    """Bytes of all weights but the embedding, of which a step reads a few rows."""
    return sum(map(_layer_bytes, engine.layers)) + engine.final_norm.bytes + engine.head.bytes


def _layer_bytes(layer: StoredBlock) -> int:
    norms = (layer.input_norm, layer.mlp_norm, layer.q_norm, layer.k_norm)
    weights = sum(weight.bytes for weight in layer.weights.values())
    return sum(norm.bytes for norm in norms if norm is not None) + weights
