"""What this machine offers an engine: instruction sets, processors, memory, and how fast they measure."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Protocol, cast

import psutil

from gristmill.runtime.errors import OutsideError, UnsupportedError
from gristmill.runtime.kernels.instruction_set import ISA_VARIABLE, chosen_instruction_set
from gristmill.runtime.machine import CpuLimits, MemoryLimit, cpu_limits, memory_limit, processor_name
from gristmill.runtime.memory import FreeMemory, free_memory

__all__ = ["MachineReport", "Speeds", "examine", "measure_speeds"]

_BUFFER = 1 << 30  # beyond the caches of most machines


class _Native(Protocol):
    """The part of the extension module that is used here."""

    def instruction_sets(self) -> list[str]: ...

    def effective_threads(self) -> int: ...

    def measure_bandwidth(self, threads: int, size: int, /) -> float: ...

    def measure_compute(self, instruction_set: str, threads: int, /) -> dict[str, float]: ...


@dataclass(frozen=True, slots=True)
class Speeds:
    """GB (10^9) read, and multiply-adds by number format, each a second, with `threads` threads."""

    threads: int
    instruction_set: str
    gigabytes: float
    multiply_adds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MachineReport:
    """All that `gristmill doctor` shows. `forced` is what GRISTMILL_ISA says, if it is set."""

    processor: str
    instruction_sets: tuple[str, ...]
    forced: str | None
    cpus: CpuLimits
    memory: int
    container: MemoryLimit | None
    free: FreeMemory
    speeds: Speeds

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready values."""
        return {
            "processor": self.processor,
            "instruction_sets": list(self.instruction_sets),
            "instruction_set": self.speeds.instruction_set,
            "forced_instruction_set": self.forced,
            "cores": {**asdict(self.cpus), "effective": self.speeds.threads},
            "memory_bytes": {
                "installed": self.memory,
                "container_limit": self.container.limit if self.container else None,
                "free": self.free.size,
            },
            "bandwidth_gb_per_s": self.speeds.gigabytes,
            "multiply_adds_per_s": dict(self.speeds.multiply_adds),
        }


def examine(environment: Mapping[str, str] = os.environ) -> MachineReport:
    """Look and measure, in some seconds.

    Raises UnsupportedError for a GRISTMILL_ISA that this machine does not run,
    and where the native engine is not built, OutsideError for what the system refuses.
    """
    known = _instruction_sets()
    forced = environment.get(ISA_VARIABLE) or None
    chosen = chosen_instruction_set(known, environment)
    free = free_memory()
    return MachineReport(
        processor=processor_name(),
        instruction_sets=known,
        forced=forced,
        cpus=cpu_limits(),
        memory=psutil.virtual_memory().total,
        container=memory_limit(),
        free=free,
        speeds=measure_speeds(chosen, min(_BUFFER, free.size // 4)),
    )


def measure_speeds(instruction_set: str, buffer_bytes: int, threads: int | None = None) -> Speeds:
    """Read a buffer and run each kind of multiply-add, by default with all threads that may be used.

    Raises OutsideError where the system has not the threads or the memory for it.
    """
    native = _native_module()
    count = threads or native.effective_threads()
    try:
        gigabytes = native.measure_bandwidth(count, buffer_bytes)
        multiply_adds = MappingProxyType(dict(native.measure_compute(instruction_set, count)))
    except (OSError, MemoryError) as error:
        raise OutsideError(
            f"the system refuses {count} threads or {buffer_bytes >> 20} MiB to measure with",
            found=str(error) or "no memory",
            hint="raise the limit on processes and memory",
        ) from error
    return Speeds(count, instruction_set, gigabytes, multiply_adds)


def _instruction_sets() -> tuple[str, ...]:
    """Slowest first."""
    return tuple(_native_module().instruction_sets())


def _native_module() -> _Native:
    try:
        return cast(_Native, importlib.import_module("gristmill.runtime.kernels._native"))
    except ImportError as error:
        raise UnsupportedError(
            "the native engine is not built",
            found=error,
            hint="reinstall gristmill where a C++ compiler is at hand",
        ) from error
