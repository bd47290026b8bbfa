"""`build`: run a recipe from model and prompts to a packaged artifact."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill import facade
from gristmill.artifacts.engines import engine_targets
from gristmill.artifacts.inspect import inspection
from gristmill.cli.options import JsonOption, StoreOption
from gristmill.cli.output import print_json, say
from gristmill.cli.progress import ConsoleProgress
from gristmill.pipeline.report.line import report_line
from gristmill.runtime.executors.load import best_engine
from gristmill.runtime.units import parse_size

__all__ = ["build"]


def build(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe file, or a shipped one by name, such as demo.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Change a key of the recipe; repeatable."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Refuse to start if more is needed: 8GiB.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Calibrate, quantize, compile, validate and package, continuing where an earlier run stopped."""
    limit = parse_size(memory) if memory is not None else None
    with ConsoleProgress() as progress:
        artifact = facade.build(
            recipe, overrides=overrides or (), store=store, progress=progress, memory_limit=limit
        )
    say(report_line(artifact.manifest, best_engine(engine_targets(artifact))))
    if as_json:
        print_json(inspection(artifact))
    else:
        print(f"{artifact.name}:{artifact.tag}@{artifact.digest}")
