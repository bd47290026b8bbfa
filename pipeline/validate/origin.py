"""Where an artifact came from: its recipe, its original model and what calibration read, if still at hand."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.store import Store
from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.calibrate import calibrate
from gristmill.pipeline.model import BuildModel, open_model
from gristmill.pipeline.record import MODEL_PATH, RECIPE_FOLDER
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.tasks.model import TaskModel
from gristmill.pipeline.validate.tasks.open_model import source_model
from gristmill.recipes.load import parse_recipe
from gristmill.recipes.presets import presets_folder
from gristmill.recipes.schema import Recipe
from gristmill.runtime.errors import InputError, RecipeError

__all__ = ["Origin", "find_recipe", "known_places", "open_original", "origin_of"]


@dataclass(frozen=True, slots=True)
class Origin:
    """The model that an artifact was made of, the recipe that made it and what calibration read."""

    recipe: Recipe
    model: BuildModel
    digest: str
    calibration: TokenSamples | None

    def open(self) -> TaskModel:
        """The original model, on the reference engine."""
        return source_model(self.model.source, self.digest)


def origin_of(store: Store, artifact: Artifact, recipe: Recipe, model: BuildModel) -> Origin:
    """The origin with what `find_recipe` and `open_original` gave, and the calibration of that recipe."""
    digest = artifact.manifest.lineage.base_model.digest
    samples = None
    if recipe.calibration is not None:
        samples = calibrate(recipe.calibration, model, digest, StageCache(store.layout.stages))
    return Origin(recipe, model, digest, samples)


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
