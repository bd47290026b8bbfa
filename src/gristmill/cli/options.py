"""Options that every command takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gristmill.artifacts.store import Store

__all__ = ["JsonOption", "StoreOption", "open_store"]

StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="DIR", help="Artifact store; else $GRISTMILL_STORE or ~/.cache/gristmill."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def open_store(path: Path | None) -> Store:
    """The store that a command works on."""
    return Store(path or Path(os.environ.get("GRISTMILL_STORE") or "~/.cache/gristmill"))
