"""The determinism contract: what, besides the recipe and its inputs, decides an artifact's bytes."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

import psutil
import torch

from gristmill.artifacts.manifest import Determinism
from gristmill.runtime.executors.reference.products import has_bfloat16_units
from gristmill.runtime.machine import processor_name

__all__ = [
    "build_threads",
    "determinism_contract",
    "host_record",
    "peak_memory",
    "using_threads",
]

_PACKAGES = ("gristmill", "numpy", "tokenizers", "torch")


def build_threads() -> int:
    """Threads that a build uses: the cores this process may run on."""
    return len(os.sched_getaffinity(0))


def determinism_contract(threads: int) -> Determinism:
    """Where these are equal, the same recipe and inputs give the same bytes."""
    isa = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    if has_bfloat16_units():
        isa += " bfloat16"
    return Determinism(threads, isa, {package: metadata.version(package) for package in _PACKAGES})


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """Run torch on so many threads, then put its setting back."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes.

    Not `ru_maxrss` where the kernel says better: after an exec that starts at
    the size of the process that forked this one.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def host_record() -> dict[str, str]:
    """The machine, for the build record; never part of an artifact's digest."""
    return {
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": str(os.cpu_count()),
        "memory_bytes": str(psutil.virtual_memory().total),
        "python": platform.python_version(),
    }
