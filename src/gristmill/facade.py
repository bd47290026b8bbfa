"""The Python interface: REFs and recipes in, the layers' own objects out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.engines import engine_targets, open_engine
from gristmill.artifacts.store import Store
from gristmill.runtime import llm as runtime
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.executors.load import best_engine
from gristmill.runtime.outputs import RequestOutput
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.settings import EngineSettings

if TYPE_CHECKING:
    from gristmill.pipeline.preflight import Preflight
    from gristmill.pipeline.progress import Progress
    from gristmill.pipeline.validate.side_by_side import Column
    from gristmill.pipeline.validate.suite import SuiteResult

__all__ = [
    "LLM",
    "build",
    "compare",
    "compile",
    "compile_targets",
    "default_store",
    "engine_folder",
    "plan",
    "validate",
]


def default_store(path: str | Path | None = None) -> Store:
    """The store at `path`, else at `$GRISTMILL_STORE`, else at `~/.cache/gristmill`."""
    return Store(Path(path or os.environ.get("GRISTMILL_STORE") or "~/.cache/gristmill"))


def build(
    recipe: str | Path,
    *,
    overrides: Sequence[str] = (),
    store: str | Path | None = None,
    progress: Progress | None = None,
    memory_limit: int | None = None,
) -> Artifact:
    """Run a recipe, a file or a shipped name, and return the artifact; finished stages are reused.

    `overrides` are `a.b=value` texts, as for `--set`; `memory_limit` is in
    bytes. Raises the errors of `gristmill.errors`.
    """
    from gristmill.recipes.load import load_recipe  # only here: serving needs no recipe

    loaded = load_recipe(recipe, overrides)
    try:
        from gristmill.pipeline.run import build as run_build
    except ModuleNotFoundError as error:
        raise _needs_build(error, "building") from error
    return run_build(loaded, default_store(store), progress=progress, memory_limit=memory_limit)


def plan(
    recipe: str | Path,
    *,
    overrides: Sequence[str] = (),
    store: str | Path | None = None,
    memory_limit: int | None = None,
) -> Preflight:
    """What building a recipe will make and take; no weight is read. Arguments as for `build`.

    Calibration tokens are kept in the store, where the build finds them.
    Raises the errors of `gristmill.errors`.
    """
    from gristmill.recipes.load import load_recipe

    loaded = load_recipe(recipe, overrides)
    try:
        from gristmill.pipeline.run import plan as run_plan
    except ModuleNotFoundError as error:
        raise _needs_build(error, "planning") from error
    return run_plan(loaded, default_store(store), memory_limit=memory_limit)


def compile(
    ref: str,
    target: str,
    *,
    store: str | Path | None = None,
    progress: Progress | None = None,
    recipe_folder: str | Path | None = None,
) -> Artifact:
    """Add an engine or an export to an artifact and return the new one, to which the tag has moved.

    `recipe_folder` holds the recipe's held-out data, if it no longer lies where
    the artifact was built. Raises the errors of `gristmill.errors`.
    """
    try:
        from gristmill.pipeline.compile.run import compile_artifact
    except ModuleNotFoundError as error:
        raise _needs_build(error, "compiling") from error
    opened = default_store(store)
    folder = _folder(recipe_folder)
    return compile_artifact(opened, opened.resolve(ref), target, progress=progress, recipe_folder=folder)


def compile_targets() -> tuple[dict[str, str], ...]:
    """The targets of `compile`: `target`, `kind`, `makes` and `needs`."""
    try:
        from gristmill.pipeline.compile.targets import TARGETS
    except ModuleNotFoundError as error:
        raise _needs_build(error, "compiling") from error
    return tuple(
        {"target": target.name, "kind": target.kind, "makes": target.makes, "needs": target.needs}
        for target in TARGETS.values()
    )


def validate(
    subject: str,
    *,
    tasks: Sequence[str] = (),
    data: str | Path | None = None,
    texts: Sequence[str | Path] = (),
    limit: int | None = None,
    engine: str | None = None,
    settings: EngineSettings | None = None,
    recipe_folder: str | Path | None = None,
    model: str | None = None,
    api_key: str | None = None,
    store: str | Path | None = None,
    progress: Progress | None = None,
) -> SuiteResult:
    """Held-out data and tasks on an artifact, a model or a server, beside the original where that is known.

    `data` is the folder that holds the tasks' files, `texts` are files to predict, `recipe_folder` is the
    one of the recipe's files, if they no longer lie where the artifact was built; `model` and `api_key` are
    for a server. Raises the errors of `gristmill.errors`.
    """
    try:
        from gristmill.pipeline.progress import SilentProgress
        from gristmill.pipeline.validate.subject import Asked, find_origin, find_subject
        from gristmill.pipeline.validate.suite import load_tasks, run_suite
    except ModuleNotFoundError as error:
        raise _needs_build(error, "validating") from error
    tell = progress or SilentProgress()
    loaded = load_tasks(tasks, _folder(data), limit, [Path(text) for text in texts])
    opened = default_store(store)
    asked = Asked(engine, settings or EngineSettings(), _folder(recipe_folder), model, api_key)
    found = find_subject(subject, opened, asked)
    origin = find_origin(found, opened, asked.recipe_folder, tell)
    return run_suite(found, origin, loaded, opened, tell)


def compare(
    subjects: Sequence[str],
    *,
    tasks: Sequence[str] = (),
    data: str | Path | None = None,
    texts: Sequence[str | Path] = (),
    limit: int | None = None,
    api_key: str | None = None,
    store: str | Path | None = None,
    progress: Progress | None = None,
) -> tuple[Column, ...]:
    """Artifacts, models and servers side by side, the first as the base; arguments as for `validate`."""
    try:
        from gristmill.pipeline.progress import SilentProgress
        from gristmill.pipeline.validate.side_by_side import compare_subjects
        from gristmill.pipeline.validate.subject import Asked, find_subject
        from gristmill.pipeline.validate.suite import load_tasks
    except ModuleNotFoundError as error:
        raise _needs_build(error, "comparing") from error
    loaded = load_tasks(tasks, _folder(data), limit, [Path(text) for text in texts])
    opened, asked = default_store(store), Asked(api_key=api_key)
    found = [find_subject(subject, opened, asked) for subject in subjects]
    return compare_subjects(found, loaded, opened, progress or SilentProgress())


def engine_folder(
    ref: str, *, store: str | Path | None = None, engine: str | None = None, full: bool = False
) -> EngineFolder:
    """An engine of an artifact, checked: the one named, else the best that this machine can run.

    `full` hashes every file. Raises ArtifactError, IntegrityError, UnsupportedError.
    """
    artifact = default_store(store).resolve(ref)
    return open_engine(artifact, engine or best_engine(engine_targets(artifact)), full=full)


def _folder(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path).expanduser().absolute()


def _needs_build(error: ModuleNotFoundError, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} needs {error.name}", hint="install it with pip install 'gristmill[build]'"
    )


class LLM:
    """An artifact in this process, for offline use. Close it, or use it as a context manager."""

    def __init__(
        self,
        ref: str,
        *,
        store: str | Path | None = None,
        settings: EngineSettings | None = None,
        engine: str | None = None,
    ) -> None:
        """Load and prove the artifact that `ref` means (name, name:tag, name@sha256:..., a folder).

        `engine` is the fastest that the artifact carries and this machine can run, unless named.
        """
        folder = engine_folder(ref, store=store, engine=engine)
        self._llm = runtime.LLM(runtime.load_engine(folder, settings))

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, texts or token ids, in their order."""
        return self._llm.generate(prompts, params)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer one chat, or several, rendered by the model's own template."""
        return self._llm.chat(messages, params)

    def close(self) -> None:
        """Free the model; calling it again has no effect."""
        self._llm.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
