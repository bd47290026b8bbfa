"""The compile stage of a build: a checkpoint as an engine's folder, written now or by an earlier build."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill.pipeline.checkpoint import WrittenCheckpoint
from gristmill.pipeline.compile.targets import find_target
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.stages import StageCache, code_version, stage_key
from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.executors.load import engine_fault
from gristmill.runtime.model_plan import ModelPlan

__all__ = ["CompiledEngine", "StepProgress", "compile_engine", "require_engines", "require_runnable"]

_FOLDER = "engine"
_CODE = (
    "gristmill.pipeline.compile",
    "gristmill.runtime.checkpoint",
    "gristmill.runtime.executors.native",
    "gristmill.runtime.formats",
    "gristmill.runtime.kernels.layout",
    "gristmill.runtime.model_plan",
    "gristmill.runtime.packing",
)


class StepProgress:
    """Tells a `Progress` what a target's `on_progress` says: the stage `compile`, in layers."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done: int | None = None

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` layers are written."""
        if self._done is None:
            self._progress.stage("compile", total, "layers")
        self._progress.advance(done - (self._done or 0))
        self._done = done


@dataclass(frozen=True, slots=True)
class CompiledEngine:
    """An engine's folder and the key of the stage that wrote it."""

    target: str
    folder: Path
    key: str


def require_runnable(targets: Sequence[str]) -> None:
    """Refuse engines that this machine can't run, before hours of work: each must prove itself here.

    Raises UnsupportedError naming the first.
    """
    for target in targets:
        if (fault := engine_fault(target)) is not None:
            raise UnsupportedError(
                f"an engine for {target} can't be proved on this machine",
                found=fault,
                hint="compile it where it will run",
            )


def require_engines(targets: Sequence[str], plan: ModelPlan) -> None:
    """Refuse engines that can't run here, or can't run this model: UnsupportedError naming the first."""
    require_runnable(targets)
    for target in targets:
        find_target(target).check(plan)


def compile_engine(
    target: str, checkpoint: WrittenCheckpoint, stages: StageCache, progress: Progress
) -> CompiledEngine:
    """Compile a checkpoint for an engine. A folder that an interrupted build left is written again.

    Raises UnsupportedError for a target or model that can't be compiled, StorageError.
    """
    chosen = find_target(target)
    assert chosen.kind == "engine", "exports are checkpoint formats"
    key = stage_key("compile", {"checkpoint": checkpoint.key, "target": target}, code_version(_CODE))
    if (done := stages.finished("compile", key)) is not None:
        return CompiledEngine(target, done / _FOLDER, key)
    with stages.open("compile", key) as stage:
        folder = stage.folder / _FOLDER
        for left in (folder, *stage.folder.glob(f".{_FOLDER}.*")):
            shutil.rmtree(left, ignore_errors=True)
        chosen.write(checkpoint.folder, folder, StepProgress(progress))
        return CompiledEngine(target, stage.finish() / _FOLDER, key)
