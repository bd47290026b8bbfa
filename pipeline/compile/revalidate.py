"""A compiled engine on the recipe's held-out data, where that is still at hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.store import Store
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.validate.gates import GateResult
from gristmill.pipeline.validate.origin import find_recipe, open_original, origin_of
from gristmill.pipeline.validate.result import ValidationResult
from gristmill.pipeline.validate.subject import Subject
from gristmill.pipeline.validate.suite import run_suite
from gristmill.pipeline.validate.tasks.open_model import engine_model
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import InputError, OutsideError

__all__ = ["Revalidation", "revalidate"]


@dataclass(frozen=True, slots=True)
class Revalidation:
    """What an engine gives on the recipe's held-out data, and the recipe's gates held against it."""

    result: ValidationResult
    gates: tuple[GateResult, ...]


def revalidate(
    store: Store, artifact: Artifact, engine: EngineFolder, recipe_folder: Path | None, tell: Progress
) -> Revalidation | None:
    """Validate `engine` as the artifact's build did.

    None, with a note that says why, if the recipe has no held-out data, or if
    its files or the original model are not found or have changed. A
    `recipe_folder` that was named must hold them: RecipeError, ModelError.
    """
    try:
        recipe = find_recipe(store, artifact, recipe_folder)
        if recipe.validation is None:
            return None
        model = open_original(recipe, artifact)
    except (InputError, OutsideError) as error:
        if recipe_folder is not None:
            raise
        tell.note(f"{engine.target} was proved but not validated: {error.line()}")
        return None
    subject = Subject(artifact.ref, partial(engine_model, engine), artifact=artifact, engine=engine)
    suite = run_suite(subject, origin_of(store, artifact, recipe, model), (), store, tell)
    assert suite.held_out is not None, "the recipe has held-out data, and the subject an engine"
    return Revalidation(replace(suite.held_out, tasks=suite.tasks), suite.gates)
