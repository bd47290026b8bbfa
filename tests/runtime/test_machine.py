"""What the kernel grants: affinity, quotas and memory limits of either version of control groups."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from gristmill.runtime import machine
from gristmill.runtime.machine import (
    CpuLimits,
    MemoryLimit,
    cpu_limits,
    memory_limit,
    processor_flags,
    processor_name,
)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")


def test_without_control_groups_affinity_decides(tmp_path: Path) -> None:
    limits = cpu_limits(tmp_path)
    assert limits.quota is None
    assert limits.effective == limits.allowed == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    "files",
    [
        {"cpu.max": "150000 100000"},
        {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"},
    ],
)
def test_a_quota_is_read_from_either_version(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files)
    assert cpu_limits(tmp_path).quota == 1.5


@pytest.mark.parametrize(
    "files",
    [
        {"cpu.max": "max 100000"},
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        {"cpu.max": ""},
    ],
)
def test_no_quota_is_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files)
    assert cpu_limits(tmp_path).quota is None


@pytest.mark.parametrize(("quota", "threads"), [(None, 8), (0.5, 1), (2.5, 2), (64.0, 8)])
def test_threads_are_what_both_allow(quota: float | None, threads: int) -> None:
    assert CpuLimits(installed=16, allowed=8, quota=quota).effective == threads


def test_the_tightest_group_above_binds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"membership": "0::/outer/inner"})
    write(tmp_path, {"outer/cpu.max": "100000 100000", "outer/inner/cpu.max": "300000 100000"})
    write(tmp_path, {"outer/memory.max": "100", "outer/memory.current": "90"})
    write(tmp_path, {"outer/inner/memory.max": "50", "outer/inner/memory.current": "5"})
    monkeypatch.setattr(machine, "_MEMBERSHIP", tmp_path / "membership")
    assert cpu_limits(tmp_path).quota == 1.0
    assert memory_limit(tmp_path) == MemoryLimit(100, 90)


def test_a_path_of_the_host_falls_back_to_the_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"membership": "4:cpu,cpuacct:/docker/0123\n0::/../other", "cpu.max": "200000 100000"})
    monkeypatch.setattr(machine, "_MEMBERSHIP", tmp_path / "membership")
    assert cpu_limits(tmp_path).quota == 2.0


@pytest.mark.parametrize(
    ("limit_file", "usage_file", "limit"),
    [
        ("memory.max", "memory.current", "max"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "9223372036854771712"),
    ],
)
def test_no_memory_limit_is_told_in_either_version(
    tmp_path: Path, limit_file: str, usage_file: str, limit: str
) -> None:
    write(tmp_path, {limit_file: limit, usage_file: "5"})
    assert memory_limit(tmp_path) is None


def test_usage_above_the_limit_leaves_nothing() -> None:
    assert MemoryLimit(limit=10, usage=12).left == 0


def test_the_processor_has_a_name() -> None:
    assert processor_name()


def test_what_the_processor_can_do_is_in_the_kernels_words() -> None:
    flags = processor_flags()
    assert all(flag == flag.strip().lower() for flag in flags)
    assert "sse2" in flags or platform.machine() != "x86_64"
