"""How much memory an engine takes, and how large its cache may be, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from gristmill.runtime.errors import GristmillError, InputError, OutsideError
from gristmill.runtime.executors.base import KVDtype
from gristmill.runtime.machine import CGROUPS, memory_limit
from gristmill.runtime.model_plan import ModelPlan
from gristmill.runtime.settings import EngineSettings

__all__ = ["FreeMemory", "MemoryPlan", "free_memory", "kv_bytes_per_token", "plan_memory"]

_BITS: dict[KVDtype, int] = {"float32": 32, "bfloat16": 16, "float16": 16, "fp8": 8, "int8": 8, "int4": 4}
_SCALED = ("int8", "int4")
_SCALE_BYTES = 8  # float32, and as much again for what an engine pads
_RUNTIME = 256 << 20  # the interpreter, its libraries and allocator slack
_CACHE_SHARE = 0.5  # of what weights and work space leave, unless the user says how much


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that can still be used, and who says so."""

    size: int
    source: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the memory goes, in bytes. `work` is activations, logits and the runtime itself."""

    budget: FreeMemory
    weights: int
    work: int
    block_bytes: int
    num_blocks: int
    block_size: int
    max_model_len: int

    @property
    def cache(self) -> int:
        """Bytes of the paged cache."""
        return self.num_blocks * self.block_bytes

    def lines(self) -> list[str]:
        """The plan as a table, one line a row."""
        tokens = self.num_blocks * self.block_size
        rows = [
            ("memory", self.budget.size, f"free ({self.budget.source})"),
            ("weights", self.weights, ""),
            ("work space", self.work, "activations, logits, runtime"),
            ("KV cache", self.cache, f"{tokens} tokens, {tokens / self.max_model_len:.1f} full contexts"),
            ("left", self.budget.size - self.weights - self.work - self.cache, ""),
        ]
        return [f"{name:<11}{_mib(size):>10}  {note}".rstrip() for name, size, note in rows]


def free_memory(cgroup: Path = CGROUPS) -> FreeMemory:
    """What this process may still take: what the machine has, or its container leaves if that is less."""
    available = psutil.virtual_memory().available
    limit = memory_limit(cgroup)
    if limit is not None and limit.left < available:
        return FreeMemory(limit.left, "left of the container's limit")
    return FreeMemory(available, "available on this machine")


def plan_memory(plan: ModelPlan, weights: int, settings: EngineSettings, free: FreeMemory) -> MemoryPlan:
    """Size the cache: as many full contexts as requests can run, within the user's limits and what is free.

    Raises InputError when the user's limit, OutsideError when the machine's memory
    does not hold one request of full length; with the numbers and what would fit.
    """
    max_model_len = _max_model_len(plan, settings)
    budget = free
    if settings.memory_bytes is not None and settings.memory_bytes < free.size:
        budget = FreeMemory(settings.memory_bytes, "your limit")
    work = _work_bytes(plan, settings)
    block_bytes = settings.block_size * kv_bytes_per_token(plan, settings.kv_dtype)
    per_context = -(-max_model_len // settings.block_size)
    rest = max(0, budget.size - weights - work)
    if settings.kv_cache_bytes is not None:
        room = min(rest, settings.kv_cache_bytes) // block_bytes
    else:  # one full context may take all that is left, several share a part of it
        room = max(int(rest * _CACHE_SHARE) // block_bytes, min(per_context, rest // block_bytes))
    num_blocks = min(per_context * settings.max_num_seqs, room)
    sized = MemoryPlan(budget, weights, work, block_bytes, num_blocks, settings.block_size, max_model_len)
    if num_blocks < per_context:
        limited = settings.kv_cache_bytes is not None or budget is not free
        raise _too_little(sized, per_context, limited=limited)
    return sized


def _max_model_len(plan: ModelPlan, settings: EngineSettings) -> int:
    if settings.max_model_len is None:
        return plan.max_positions
    if settings.max_model_len > plan.max_positions:
        raise InputError(
            "max_model_len is more than the model was made for",
            found=settings.max_model_len,
            expected=f"at most {plan.max_positions}",
        )
    return settings.max_model_len


def kv_bytes_per_token(plan: ModelPlan, dtype: KVDtype) -> int:
    """Codes, and for integers a float32 scale for each token's key and value of a head, and their padding."""
    codes = -(-plan.kv_elements_per_token * _BITS[dtype] // 8)
    if dtype not in _SCALED:
        return codes
    return codes + sum(2 * layer.attention.num_kv_heads * _SCALE_BYTES for layer in plan.layers)


def _work_bytes(plan: ModelPlan, settings: EngineSettings) -> int:
    """Activations of a full step and its logits, in float32, from above; and the runtime."""
    widths = [layer.mlp.gate.out_features for layer in plan.layers]
    per_token = 8 * plan.hidden_size + 3 * max(widths, default=0)
    rows = settings.max_num_seqs + settings.max_scored_tokens
    return 4 * (settings.max_num_batched_tokens * per_token + 2 * rows * plan.vocab_size) + _RUNTIME


def _too_little(plan: MemoryPlan, blocks_per_context: int, *, limited: bool) -> GristmillError:
    needed = plan.weights + plan.work + blocks_per_context * plan.block_bytes
    fits = plan.num_blocks * plan.block_size
    hint = f"--max-model-len {fits} would fit" if fits else "the weights alone do not fit"
    kind = InputError if limited else OutsideError
    return kind(
        f"one request of {plan.max_model_len} tokens does not fit into memory",
        found=f"{_mib(plan.budget.size)} {plan.budget.source}, {_mib(plan.cache)} of it for the cache",
        expected=f"{_mib(needed)}: " + ", ".join(_shares(plan, blocks_per_context)),
        hint=hint,
    )


def _shares(plan: MemoryPlan, blocks_per_context: int) -> Iterator[str]:
    yield f"weights {_mib(plan.weights)}"
    yield f"work space {_mib(plan.work)}"
    yield f"cache {_mib(blocks_per_context * plan.block_bytes)}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
