"""Options that every command takes, and what several check of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill.runtime.errors import InputError

__all__ = ["JsonOption", "StoreOption", "require_file_place"]

StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="DIR", help="Artifact store; else $GRISTMILL_STORE or ~/.cache/gristmill."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def require_file_place(option: str, path: Path) -> None:
    """Raise InputError, before any work, for a path to write at which something stands that is no file."""
    if path.exists() and not path.is_file():
        raise InputError(f"{option} {path}", found="something that is no file", expected="a file to write")
