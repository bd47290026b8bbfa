"""A process with a limit on its memory: in a control group where one can be made, else watched."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Limited", "run_limited"]

_GROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
)
"""Where control groups of version 2 and 1 lie, and the file that limits one's memory."""
_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True)
class Limited:
    """A process that has ended: -9 if it was killed for taking more; `resident` is the most that was seen."""

    returncode: int
    output: str
    errors: str
    resident: int
    in_group: bool


def run_limited(command: Sequence[object], limit: int, timeout_s: float) -> Limited:
    """Run `command`; what it holds in memory, pages of files aside, never exceeds `limit` bytes.

    In a control group the kernel sees to that, page cache included. Elsewhere the
    process is looked at 50 times a second and killed. Raises TimeoutError after `timeout_s`.
    """
    with _group(limit) as group, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:

        def join() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        process = subprocess.Popen(
            list(map(str, command)), stdout=out, stderr=err, text=True, preexec_fn=join
        )
        peak = _watch(process, limit, timeout_s)
        out.seek(0)
        err.seek(0)
        return Limited(process.returncode, out.read(), err.read(), peak, group is not None)


def _watch(process: subprocess.Popen[str], limit: int, timeout_s: float) -> int:
    peak, end = 0, time.monotonic() + timeout_s
    watched = psutil.Process(process.pid)
    try:
        while process.poll() is None:
            memory = watched.memory_info()
            peak = max(peak, memory.rss - memory.shared)
            if peak > limit:
                process.kill()
            if time.monotonic() > end:
                process.kill()
                process.wait()
                raise TimeoutError(f"not done within {timeout_s:.0f} s")
            time.sleep(_INTERVAL_S)
    except psutil.NoSuchProcess:
        process.wait()
    return peak


@contextmanager
def _group(limit: int) -> Iterator[Path | None]:
    """A new control group with this limit, removed at the end; None where none can be made."""
    for root, limiting in _GROUPS:
        group = root / f"gristmill-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / limiting).exists():
                continue
            (group / limiting).write_text(str(limit))
            yield group
            return
        finally:
            group.rmdir()
    yield None
