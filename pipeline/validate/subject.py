"""What a user names to be validated: an artifact, a checkpoint or a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.engines import engine_targets, open_engine
from gristmill.artifacts.store import Store
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.validate.origin import Origin, find_recipe, open_original, origin_of
from gristmill.pipeline.validate.tasks.model import TaskModel
from gristmill.pipeline.validate.tasks.open_model import engine_model, source_model
from gristmill.pipeline.validate.tasks.server_model import ServerAddress, ServerModel
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import InputError, OutsideError, UnsupportedError
from gristmill.runtime.executors.load import best_engine
from gristmill.runtime.settings import EngineSettings
from gristmill.runtime.sources.open import open_source

__all__ = ["Asked", "Subject", "find_origin", "find_subject"]

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Asked:
    """How a subject is to be run: an artifact's engine and its formats, where its recipe's files lie;
    a server's model, by name, and the key for it.
    """

    engine: str | None = None
    settings: EngineSettings = field(default_factory=EngineSettings)
    recipe_folder: Path | None = None
    model: str | None = None
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A model under test; `artifact` and its `engine` are None for others than artifacts."""

    name: str
    open: Callable[[], TaskModel]
    settings: EngineSettings = field(default_factory=EngineSettings)
    artifact: Artifact | None = None
    engine: EngineFolder | None = None


def find_subject(text: str, store: Store, asked: Asked) -> Subject:
    """The subject that `text` means: the REF of an artifact, a MODEL or a server's URL.

    Whatever does not lie in the store is a model if it is written as one:
    with `package:`, with `.gguf`, or as a path or id without a manifest.
    Raises ArtifactError, ModelError, InputError, UnsupportedError, OutsideError for a server that is not
    there.
    """
    if text.startswith(("http://", "https://")):
        _require_no_formats(text, asked)
        address = ServerAddress(text, asked.model, asked.api_key)
        ServerModel(address).close()  # told now, not behind the models that are run before it
        return Subject(text, partial(ServerModel, address))
    if asked.model is not None:
        raise InputError(f"--model {asked.model} for {text}", expected="a server's URL")
    if _is_model(text):
        return _checkpoint(text, asked)
    artifact = store.resolve(text)
    folder = open_engine(artifact, asked.engine or best_engine(engine_targets(artifact)))

    def open_model() -> TaskModel:
        return engine_model(folder, asked.settings)

    return Subject(artifact.ref, open_model, asked.settings, artifact, folder)


def _is_model(text: str) -> bool:
    if text.startswith("package:") or text.endswith(".gguf"):
        return True
    is_path = "/" in text or text.startswith((".", "~"))
    return is_path and not text.startswith("oci://") and not _has_manifest(text)


def _has_manifest(text: str) -> bool:
    return os.path.exists(os.path.join(os.path.expanduser(text), _MANIFEST))


def _checkpoint(text: str, asked: Asked) -> Subject:
    _require_no_formats(text, asked)
    source = open_source(text, Path.cwd())

    def open_model() -> TaskModel:
        return source_model(source, source.digest())

    return Subject(text, open_model)


def _require_no_formats(text: str, asked: Asked) -> None:
    """Raise UnsupportedError for options that only an artifact's engine has."""
    settings = asked.settings
    given = {
        "--engine": asked.engine,
        "--compute": settings.compute,
        "--kv-cache-dtype": settings.kv_cache_dtype,
        "--threads": settings.threads,
        "--recipe-folder": asked.recipe_folder,
    }
    for option, value in given.items():
        if value is not None:
            raise UnsupportedError(
                f"{option} {value} for {text}",
                expected="the REF of an artifact",
                hint="a checkpoint runs on the reference engine in bfloat16, a server as it was started",
            )


def find_origin(subject: Subject, store: Store, folder: Path | None, tell: Progress) -> Origin | None:
    """The original of an artifact. None for others, and, with a note that says why, if it can't be found.

    `folder` holds the recipe's files; one that is named must hold them: RecipeError, ModelError.
    """
    artifact = subject.artifact
    if artifact is None:
        return None
    try:
        recipe = find_recipe(store, artifact, folder)
        model = open_original(recipe, artifact)
    except (InputError, OutsideError) as error:
        if folder is not None:
            raise
        tell.note(f"not compared with the original model: {error.line()}")
        return None
    return origin_of(store, artifact, recipe, model)
