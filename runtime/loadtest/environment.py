"""Where a measurement was made, so that two of them can be told apart later."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from gristmill.runtime.machine import cpu_limits, processor_name

__all__ = ["describe_environment"]


def describe_environment() -> dict[str, Any]:
    """Time, machine and versions of the client; `commit` only if it runs from a working tree."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor_name(),
        "cores": cpu_limits().effective,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "gristmill": version("gristmill"),
        "commit": _commit(),
    }


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
