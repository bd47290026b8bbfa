"""What the command line prints: results on stdout, one-line errors on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from gristmill.cli.option_errors import with_option_names
from gristmill.runtime.errors import GristmillError

__all__ = ["print_error", "print_fields", "print_json", "print_table", "say"]


def say(text: str) -> None:
    """A line for a person, on stderr so that stdout stays the result alone."""
    with suppress(OSError):  # a log on a full disk must change neither what is done nor the exit code
        print(text, file=sys.stderr, flush=True)


def print_error(error: GristmillError) -> None:
    """The error's one line, then its details, if any, indented."""
    say(f"error: {with_option_names(error.line())}")
    for detail in error.details:
        say(f"  {detail}")


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A plain table on stdout, as wide as it needs to be when it is piped."""
    # Only here: most commands print no table, and a server has to start fast.
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 10_000)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """Aligned `name  value` lines on stdout."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {value}")
