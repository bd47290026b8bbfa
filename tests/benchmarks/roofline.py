"""What the machine allows: bytes and multiply-adds of a workload against speeds measured on the spot."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.runtime.doctor import Speeds
from gristmill.runtime.model_plan import ModelPlan
from gristmill.runtime.settings import Compute
from tests.benchmarks.workloads import Storage, Workload

__all__ = ["CHUNK", "Ceiling", "Work", "ceiling", "count_work"]

CHUNK = 512
"""Prompt tokens of one step, for every engine."""


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes read and written, and multiply-adds, of the tokens that are timed.

    `linear` ones use the weights' arithmetic, `attention` ones that of the cache.
    """

    tokens: int
    bytes: float
    linear: float
    attention: float

    @property
    def bytes_per_token(self) -> float:
        """Bytes for each token that is timed."""
        return self.bytes / self.tokens


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most tokens per second, and what limits them."""

    tokens_per_second: float
    bound: str


def count_work(plan: ModelPlan, storage: Storage, workload: Workload) -> Work:
    """What must be moved and multiplied at least: weights once a step, the cache before each position."""
    steps, tokens = _steps(workload), workload.tokens
    rows = tokens if workload.steps else workload.batch  # of logits
    linear = tokens * sum(linear.in_features * linear.out_features for linear in plan.linears)
    linear += rows * plan.vocab_size * plan.hidden_size
    attention = 0.0
    for layer in plan.layers:
        pairs = workload.batch * _pairs(workload, layer.attention.sliding_window)
        attention += 2 * layer.attention.num_heads * layer.attention.head_dim * pairs
    return Work(tokens, steps * storage.weights + _kv_bytes(storage, workload), linear, attention)


def ceiling(work: Work, speeds: Speeds, compute: Compute) -> Ceiling:
    """Where memory and arithmetic overlap perfectly; attention at the bfloat16 rate."""
    memory = work.bytes / (speeds.gigabytes * 1e9)
    rates = speeds.multiply_adds
    arithmetic = work.linear / rates[compute] + work.attention / rates["bfloat16"]
    seconds = max(memory, arithmetic)
    return Ceiling(work.tokens / seconds, "memory" if memory > arithmetic else "arithmetic")


def _steps(workload: Workload) -> int:
    return workload.steps or -(-workload.batch * workload.context // CHUNK)


def _pairs(workload: Workload, window: int | None) -> float:
    """Pairs of a query and a key in one layer, for one sequence."""
    first = workload.context if workload.steps else 0
    seen = range(first + 1, workload.context + workload.steps + 1)
    return sum(seen) if window is None else sum(min(keys, window) for keys in seen)


def _kv_bytes(storage: Storage, workload: Workload) -> float:
    """Each token's entries written once; in every step all before it read once."""
    if workload.steps:
        read = workload.steps * workload.context + workload.steps * (workload.steps + 1) / 2
        return storage.kv_token * workload.batch * (read + workload.steps)
    chunks = range(0, workload.context, CHUNK)
    read = sum(min(start + CHUNK, workload.context) for start in chunks)
    return storage.kv_token * workload.batch * (read + workload.context)
