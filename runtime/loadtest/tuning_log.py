"""The tuning log: one JSON line for every run, with its environment, so that no result is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill.runtime.errors import InputError
from gristmill.runtime.files import make_folder, storage_errors

__all__ = ["append_runs", "read_runs"]


def append_runs(path: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Add runs at the end. Raises StorageError."""
    make_folder(path.parent)
    lines = "".join(json.dumps(run, ensure_ascii=False) + "\n" for run in runs)
    with storage_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(lines)  # one write, so that two processes do not mix their lines
        file.flush()
        os.fsync(file.fileno())


def read_runs(path: Path) -> list[dict[str, Any]]:
    """All runs, the oldest first; none if there is no log. Raises InputError with a bad line's number."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    runs = []
    for number, line in enumerate(lines, start=1):
        try:
            runs.append(dict(json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path}:{number}", found=line[:80], expected="a run as JSON") from error
    return runs
