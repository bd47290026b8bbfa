"""The tasks of a recipe, on the engine that serves and on the original model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gristmill.pipeline.progress import Progress
from gristmill.pipeline.prove import Proof
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.tasks.open_model import engine_model
from gristmill.pipeline.validate.tasks.outcome import OpenModel, TaskRows, run_beside_original
from gristmill.runtime.engine_folder import EngineFolder

__all__ = ["prove_tasks"]


def prove_tasks(
    proof: Proof,
    engine: EngineFolder,
    original: OpenModel,
    tasks: Sequence[TaskRows],
    stages: StageCache,
    progress: Progress,
) -> Proof:
    """`proof` with the tasks in the validation of `engine`, which has passed its golden prompts."""
    if not tasks:
        return proof
    outcomes = run_beside_original(lambda: engine_model(engine), original, tasks, stages, progress)
    result = replace(proof.validation[engine.target], tasks=outcomes)
    return replace(proof, validation={**proof.validation, engine.target: result})
