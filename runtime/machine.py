"""What the kernel grants this process: processors, processor time, memory; read in one place for all."""

from __future__ import annotations

import math
import os
import platform
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

__all__ = [
    "CGROUPS",
    "CpuLimits",
    "MemoryLimit",
    "address_space_limit",
    "cpu_limits",
    "memory_limit",
    "oversubscription",
    "processor_flags",
    "processor_name",
]

CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # version 1 writes the largest number of whole pages instead of "max"
_MEMORY_FILES = (
    ("memory.max", "memory.current"),  # version 2
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),  # version 1
)


@dataclass(frozen=True, slots=True)
class CpuLimits:
    """Processors of the machine, those that affinity allows, and the quota of their time, if any."""

    installed: int
    allowed: int
    quota: float | None

    @property
    def effective(self) -> int:
        """Threads that can run at once: as many as are allowed and the quota pays for."""
        return self.allowed if self.quota is None else max(1, min(self.allowed, math.floor(self.quota)))


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit and what is used of it, in bytes.

    In a container, pages of files that no process has mapped do not count as used: the kernel gives them
    back when asked, those of a checkpoint that was just read as well.
    """

    limit: int
    usage: int

    @property
    def left(self) -> int:
        """Bytes that may still be taken."""
        return max(0, self.limit - self.usage)


def cpu_limits(cgroup: Path = CGROUPS) -> CpuLimits:
    """What affinity and the tightest quota among this process's control groups allow."""
    quotas = [quota for folder in _folders(cgroup, "cpu") if (quota := _cpu_quota(folder)) is not None]
    return CpuLimits(
        installed=os.cpu_count() or 1,
        allowed=len(os.sched_getaffinity(0)),
        quota=min(quotas, default=None),
    )


def oversubscription(threads: int | None, limits: CpuLimits) -> str | None:
    """A warning if more threads were asked for than can run at once."""
    if threads is None or threads <= limits.effective:
        return None
    return (
        f"warning: {threads} threads for {limits.effective} processors "
        f"({limits.installed} installed, {limits.allowed} allowed, quota {limits.quota or 'none'}): "
        "they will wait for each other"
    )


def memory_limit(cgroup: Path = CGROUPS) -> MemoryLimit | None:
    """The limit among this process's control groups that leaves least; None if there is no limit."""
    limits = [limit for folder in _folders(cgroup, "memory") if (limit := _memory_limit(folder)) is not None]
    return min(limits, key=lambda limit: limit.left, default=None)


def address_space_limit() -> MemoryLimit | None:
    """What `ulimit -v` allows this process to map, and what it has mapped; None if there is no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return MemoryLimit(limit, psutil.Process().memory_info().vms)


def processor_name() -> str:
    """The processor as its maker calls it, as far as the system says."""
    return _processor_entry("model name") or platform.processor()


def processor_flags() -> frozenset[str]:
    """What the processor can do, in the kernel's words; empty where the system does not say."""
    return frozenset((_processor_entry("flags") or "").split())


def _processor_entry(name: str) -> str | None:
    """What the system says of its first processor under `name`."""
    lines = (_read(Path("/proc/cpuinfo")) or "").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)


def _folders(cgroup: Path, controller: str) -> Iterator[Path]:
    """Folders whose limits bind this process: its own group's and those above, in either version's tree.

    In a container the recorded path may be the host's; then only the roots exist.
    """
    paths = {"": "/", controller: "/"}
    for line in (_read(_MEMBERSHIP) or "").splitlines():
        _, names, path = line.split(":", 2)
        paths.update({name: path for name in names.split(",") if name in paths})
    for name, path in paths.items():
        own = PurePosixPath("" if ".." in path else path.lstrip("/"))
        yield from (cgroup / name / folder for folder in (own, *own.parents))


def _cpu_quota(folder: Path) -> float | None:
    """Processors that the group's quota is worth."""
    if text := _read(folder / "cpu.max"):  # version 2
        quota, _, period = text.partition(" ")
    else:
        quota = _read(folder / "cpu.cfs_quota_us") or ""
        period = _read(folder / "cpu.cfs_period_us") or ""
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return None  # "max" or -1: no limit
    return int(quota) / int(period)


def _memory_limit(folder: Path) -> MemoryLimit | None:
    for limit_file, usage_file in _MEMORY_FILES:
        limit, usage = _read(folder / limit_file), _read(folder / usage_file)
        if not (limit and usage and limit.isdecimal() and usage.isdecimal()):
            continue
        if int(limit) < _NO_LIMIT:
            return MemoryLimit(int(limit), max(0, int(usage) - _spare_file_pages(folder)))
    return None


def _spare_file_pages(folder: Path) -> int:
    """Bytes of the page cache that the group could lose: those that no process has mapped.

    What was read twice is `active`, and is given back all the same. The sum is of the group and those below
    it; version 1 writes that behind `total_`, and has another name for mapped pages.
    """
    values = dict(line.split(" ", 1) for line in (_read(folder / "memory.stat") or "").splitlines())

    def size(*names: str) -> int:
        return int(next((values[name] for name in names if name in values), "0"))

    cached = size("total_inactive_file", "inactive_file") + size("total_active_file", "active_file")
    return max(0, cached - size("total_mapped_file", "file_mapped"))


def _read(file: Path) -> str | None:
    """The file's text, or None: which of these files exist depends on the system."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return None
