"""`build`: run a recipe from model and prompts to a packaged artifact."""

from __future__ import annotations

from gristmill import facade
from gristmill.artifacts.engines import engine_targets
from gristmill.artifacts.inspect import inspection
from gristmill.cli.options import BuildMemoryOption, JsonOption, RecipeArgument, SetOption, StoreOption
from gristmill.cli.output import print_json, say
from gristmill.cli.progress import ConsoleProgress
from gristmill.pipeline.report.line import report_line
from gristmill.runtime.executors.load import best_engine
from gristmill.runtime.units import parse_size

__all__ = ["build"]


def build(
    recipe: RecipeArgument,
    overrides: SetOption = None,
    memory: BuildMemoryOption = None,
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
