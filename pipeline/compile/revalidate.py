"""A compiled engine on the recipe's held-out data, where that is still at hand."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.store import Store
from gristmill.pipeline.calibrate import calibrate
from gristmill.pipeline.model import BuildModel, open_model
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.prove import validate_engines
from gristmill.pipeline.record import MODEL_PATH, RECIPE_FOLDER
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.data import load_held_out
from gristmill.pipeline.validate.gates import GateResult, evaluate_gates
from gristmill.pipeline.validate.original import OriginalLogits
from gristmill.pipeline.validate.result import ValidationResult
from gristmill.recipes.load import parse_recipe
from gristmill.recipes.presets import presets_folder
from gristmill.recipes.schema import Recipe
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import InputError, OutsideError, RecipeError

__all__ = ["Revalidation", "find_recipe", "known_places", "open_original", "revalidate"]


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
    held_out = load_held_out(recipe.validation.data, model.tokenizer)
    samples = None
    if recipe.calibration is not None:
        digest = artifact.manifest.lineage.base_model.digest
        samples = calibrate(recipe.calibration, model, digest, StageCache(store.layout.stages))
    tell.stage("validate", sum(entry.samples.tokens for entry in held_out), "tokens")
    original = partial(OriginalLogits, model.plan, model.source)
    result = validate_engines([engine], original, held_out, samples, tell)[engine.target]
    return Revalidation(result, evaluate_gates(recipe.validation.gates.all, result.metrics))


def known_places(store: Store, artifact: Artifact, recipe_folder: Path | None) -> dict[str, str]:
    """Where the artifact's build found its recipe and model, as far as the store knows.

    A `recipe_folder` that is given outranks the recorded one.
    """
    record = store.record(artifact)
    host = {} if record is None else record.host
    places = {key: host[key] for key in (RECIPE_FOLDER, MODEL_PATH) if key in host}
    if recipe_folder is not None:
        places[RECIPE_FOLDER] = str(recipe_folder)
    return places


def find_recipe(store: Store, artifact: Artifact, named: Path | None) -> Recipe:
    """The artifact's recipe beside its files, whose digests it pins. Raises RecipeError."""
    text = (artifact.folder / "recipe.yaml").read_text(encoding="utf-8")
    places = known_places(store, artifact, named)
    known = [Path(places[RECIPE_FOLDER])] if RECIPE_FOLDER in places else []
    faults: list[RecipeError] = []
    for folder in known if named is not None else [*known, presets_folder()]:
        try:
            recipe = parse_recipe(text, f"recipe of {artifact.name} in {folder}", folder)
        except RecipeError as error:
            faults.append(error)
            continue
        if not os.path.exists(folder / recipe.model) and os.path.exists(places.get(MODEL_PATH, "")):
            return recipe.model_copy(update={"model": places[MODEL_PATH]})
        return recipe
    raise faults[0]


def open_original(recipe: Recipe, artifact: Artifact) -> BuildModel:
    """The model that the artifact was made of. Raises InputError if it has changed since, ModelError."""
    model = open_model(recipe)
    found, expected = model.source.digest(), artifact.manifest.lineage.base_model.digest
    if found != expected:
        raise InputError(f"the original model {recipe.model} has changed", found=found, expected=expected)
    return model
