"""Options that several commands take, and what several check of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill.runtime.errors import InputError

__all__ = [
    "BuildMemoryOption",
    "JsonOption",
    "RecipeArgument",
    "SetOption",
    "StoreOption",
    "require_file_place",
]

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe file, or a shipped one by name, such as demo.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Change a key of the recipe; repeatable."),
]
BuildMemoryOption = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Refuse to start if more is needed: 8GiB.")
]

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
