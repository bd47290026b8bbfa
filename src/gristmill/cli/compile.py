"""`compile`: add an engine or an export to an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill import facade
from gristmill.artifacts.inspect import inspection
from gristmill.cli.options import JsonOption, StoreOption
from gristmill.cli.output import print_json, print_table
from gristmill.cli.progress import ConsoleProgress
from gristmill.runtime.errors import InputError

__all__ = ["compile_target"]


def compile_target(
    ref: Annotated[
        str | None, typer.Argument(metavar="[REF]", help="name, name:tag, name@sha256:... or a folder.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="T", help="What to add; --list shows what there is.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="The recipe's files, if they moved since it was built."),
    ] = None,
    list_targets: Annotated[bool, typer.Option("--list", help="Show the targets and end.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add an engine or an export to an artifact, as a new artifact to which the tag moves."""
    if list_targets:
        _list(as_json=as_json)
        return
    if ref is None or target is None:
        raise InputError(
            "compile needs a REF and a --target",
            found=f"no {'REF' if ref is None else '--target'}",
            hint="`gristmill compile --list` shows the targets",
        )
    with ConsoleProgress() as progress:
        artifact = facade.compile(ref, target, store=store, progress=progress, recipe_folder=data)
    if as_json:
        print_json(inspection(artifact))
    else:
        print(artifact.ref)


def _list(*, as_json: bool) -> None:
    rows = facade.compile_targets()
    if as_json:
        print_json(list(rows))
    else:
        print_table(
            ["TARGET", "KIND", "MAKES", "NEEDS"],
            [[row["target"], row["kind"], row["makes"], row["needs"]] for row in rows],
        )
