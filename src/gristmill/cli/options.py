"""Options that every command takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["JsonOption", "StoreOption"]

StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="DIR", help="Artifact store; else $GRISTMILL_STORE or ~/.cache/gristmill."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
