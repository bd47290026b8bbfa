"""What every benchmark writes: lines of its table and rows of its JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill.runtime.files import write_atomic

__all__ = ["result_row", "table_line", "write_rows"]


def table_line(cells: Sequence[str], first: int = 25, width: int = 13) -> str:
    """One line of a table: the name on the left in `first` columns, values right-aligned in `width`."""
    name, *values = cells
    return f"{name:<{first}}" + "".join(f"{value:>{width}}" for value in values)


def result_row(
    metric: str,
    ours: float,
    peer: str,
    peer_value: float | None,
    unit: str,
    command: str,
    limit: float | None = None,
) -> dict[str, Any]:
    """One comparison; `limit` bounds the ratio, ours over the peer's."""
    return {
        "metric": metric,
        "ours": ours,
        "peer": peer,
        "peer_value": peer_value,
        "ratio": None if not peer_value else ours / peer_value,
        "limit": limit,
        "unit": unit,
        "command": command,
    }


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the benchmark's JSON file, a list of rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(list(rows), indent=1).encode())
