"""How much memory an engine takes, and how large its cache may be, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from gristmill.runtime.errors import GristmillError, InputError, OutsideError
from gristmill.runtime.executors.base import KVDtype
from gristmill.runtime.machine import CGROUPS, address_space_limit, memory_limit
from gristmill.runtime.model_plan import ModelPlan
from gristmill.runtime.settings import EngineSettings

__all__ = [
    "FreeMemory",
    "MemoryPlan",
    "ProcessMemory",
    "free_memory",
    "kv_bytes_per_token",
    "largest_processes",
    "plan_memory",
]

_BITS: dict[KVDtype, int] = {
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "fp8": 8,
    "int8": 8,
    "int4": 6,  # keys have eight
}
_SCALED = ("int8", "int4")
_SCALE_BYTES = 8  # float32, and as much again for what an engine pads
_MIB = 1 << 20
_RUNTIME = 256 * _MIB  # the interpreter, its libraries and allocator slack
_CACHE_SHARE = 0.5  # of what weights and work space leave, unless the user says how much
_CACHE_MOST = 4 << 30  # unless the user says how much, or one full context needs more
_NAMED_PROCESSES = 3


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that can still be used, and who says so."""

    size: int
    source: str


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Resident bytes of another process."""

    name: str
    pid: int
    resident: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the memory goes, in bytes.

    `work` is activations, logits (those of scored prompts too) and the runtime itself.
    """

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

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready values."""
        return {**asdict(self), "cache": self.cache}

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
    """What this process may still take: the least of the machine's, its container's and its own."""
    sizes = [FreeMemory(psutil.virtual_memory().available, "available on this machine")]
    if (container := memory_limit(cgroup)) is not None:
        sizes.append(FreeMemory(container.left, "left of the container's limit"))
    if (own := address_space_limit()) is not None:
        sizes.append(FreeMemory(own.left, "left of the process's address space, see ulimit -v"))
    return min(sizes, key=lambda free: free.size)


def largest_processes(count: int = _NAMED_PROCESSES) -> list[ProcessMemory]:
    """The other processes that hold most memory, largest first, as far as this one may look."""
    own = psutil.Process().pid
    found: list[ProcessMemory] = []
    for process in psutil.process_iter(["name", "memory_info"]):
        memory = process.info["memory_info"]
        if process.pid != own and memory is not None:
            found.append(ProcessMemory(process.info["name"], process.pid, memory.rss))
    return sorted(found, key=lambda process: -process.resident)[:count]


def plan_memory(plan: ModelPlan, weights: int, settings: EngineSettings, free: FreeMemory) -> MemoryPlan:
    """Size the cache within the user's limits and what is free.

    By default as many full contexts as requests can run, at most 4 GiB unless one
    context needs more; with `kv_cache_bytes` just that. Raises InputError when
    the user's limit, OutsideError when the machine's memory does not hold one
    request of full length; with the numbers and the option that would fit.
    """
    max_model_len = _max_model_len(plan, settings)
    budget = free
    if settings.memory_bytes is not None and settings.memory_bytes < free.size:
        budget = FreeMemory(settings.memory_bytes, "your limit")
    work = _work_bytes(plan, settings)
    block_bytes = settings.block_size * kv_bytes_per_token(plan, settings.kv_dtype)
    per_context = -(-max_model_len // settings.block_size)
    rest = max(0, budget.size - weights - work)
    num_blocks = _num_blocks(settings, rest, block_bytes, per_context)
    sized = MemoryPlan(budget, weights, work, block_bytes, num_blocks, settings.block_size, max_model_len)
    if num_blocks < per_context:
        raise _too_little(sized, per_context, settings, free)
    if settings.kv_cache_bytes is not None and settings.kv_cache_bytes > rest:
        raise InputError(
            "the cache that was asked for does not fit into memory",
            found=f"{_mib(budget.size)} {budget.source}, {_mib(rest)} of it beside weights and work space",
            expected=_mib(settings.kv_cache_bytes),
            hint=f"--kv-cache-memory {rest // _MIB}MiB would fit",
        )
    return sized


def _num_blocks(settings: EngineSettings, rest: int, block_bytes: int, per_context: int) -> int:
    if settings.kv_cache_bytes is not None:
        return min(rest, settings.kv_cache_bytes) // block_bytes
    shared = min(int(rest * _CACHE_SHARE), _CACHE_MOST) // block_bytes
    alone = min(per_context, rest // block_bytes)  # one full context may take all that is left
    return min(per_context * settings.max_num_seqs, max(shared, alone))


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
    """Activations of a full step, its logits and the angles of all positions, in float32; and the runtime."""
    mlps = [layer.mlp for layer in plan.layers]
    experts = max((3 * mlp.width + 2 * (mlp.passes - 1) * plan.hidden_size for mlp in mlps), default=0)
    per_token = 8 * plan.hidden_size + experts
    rows = settings.max_num_seqs + settings.max_scored_tokens
    numbers = settings.max_num_batched_tokens * per_token + 2 * rows * plan.vocab_size
    angles = _max_model_len(plan, settings) * sum(rope.rotary_dim for rope in plan.ropes)
    return 4 * (numbers + angles) + _RUNTIME


def _too_little(
    plan: MemoryPlan, blocks_per_context: int, settings: EngineSettings, free: FreeMemory
) -> GristmillError:
    cache = blocks_per_context * plan.block_bytes
    needed = plan.weights + plan.work + cache
    asked = settings.kv_cache_bytes
    if asked is not None and asked < cache and needed <= plan.budget.size:
        return InputError(
            f"--kv-cache-memory does not hold one request of {plan.max_model_len} tokens",
            found=f"{asked} bytes",
            expected=f"at least {cache} bytes",
            hint=_what_fits(plan, cache, needed, settings, free),
        )
    found = f"{_mib(plan.budget.size)} {plan.budget.source}, {_mib(plan.cache)} of it for the cache"
    others = largest_processes()
    if plan.budget is free and needed <= free.size + sum(process.resident for process in others):
        found += "; others hold " + ", ".join(_others(others))
    limited = settings.kv_cache_bytes is not None or plan.budget is not free
    kind = InputError if limited else OutsideError
    return kind(
        f"one request of {plan.max_model_len} tokens does not fit into memory",
        found=found,
        expected=f"{_mib(needed)}: " + ", ".join(_shares(plan, blocks_per_context)),
        hint=_what_fits(plan, cache, needed, settings, free),
    )


def _what_fits(plan: MemoryPlan, cache: int, needed: int, settings: EngineSettings, free: FreeMemory) -> str:
    """The options of which each alone would fit."""
    options: list[str] = []
    if needed <= plan.budget.size:
        options.append(f"--kv-cache-memory {-(-cache // _MIB)}MiB")
    elif plan.budget is not free and settings.kv_cache_bytes is None and needed <= free.size:
        options.append(f"--memory {-(-needed // _MIB)}MiB")
    if plan.num_blocks:
        options.append(f"--max-model-len {plan.num_blocks * plan.block_size}")
    if options:
        return " or ".join(options) + " would fit"
    if plan.weights > plan.budget.size:
        return "the weights alone do not fit"
    if plan.weights + plan.work <= plan.budget.size:
        return "a smaller --block-size or --max-model-len needs less cache"
    return "smaller --max-num-batched-tokens or --max-num-seqs need less work space"


def _others(processes: Sequence[ProcessMemory]) -> Iterator[str]:
    for process in processes:
        yield f"{process.name} (pid {process.pid}) {_mib(process.resident)}"


def _shares(plan: MemoryPlan, blocks_per_context: int) -> Iterator[str]:
    yield f"weights {_mib(plan.weights)}"
    yield f"work space {_mib(plan.work)}"
    yield f"cache {_mib(blocks_per_context * plan.block_bytes)}"


def _mib(size: int) -> str:
    return f"{size / _MIB:,.0f} MiB"
