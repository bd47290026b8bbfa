"""The validation suite: an artifact, a checkpoint or a server, on held-out data and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gristmill.artifacts.store import Store
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.prove import validate_engines
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.data import load_held_out
from gristmill.pipeline.validate.gates import GateResult, evaluate_gates
from gristmill.pipeline.validate.origin import Origin
from gristmill.pipeline.validate.original import OriginalLogits
from gristmill.pipeline.validate.recipe_tasks import recipe_tasks, task_gates
from gristmill.pipeline.validate.result import ValidationResult
from gristmill.pipeline.validate.subject import Subject
from gristmill.pipeline.validate.tasks.catalogue import tasks_named
from gristmill.pipeline.validate.tasks.outcome import TaskOutcome, TaskRows, run_beside_original
from gristmill.pipeline.validate.tasks.rows import find_data, read_rows
from gristmill.pipeline.validate.tasks.text import read_windows, text_task
from gristmill.runtime.errors import InputError

__all__ = ["SuiteResult", "load_tasks", "run_suite"]


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """What the suite found. `held_out` is None where there is no original to compare with."""

    name: str
    held_out: ValidationResult | None
    gates: tuple[GateResult, ...]
    tasks: tuple[TaskOutcome, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values: one engine's `validation` of the public contract, and a name."""
        tasks = {outcome.result.task: outcome.to_dict() for outcome in self.tasks}
        held_out = {} if self.held_out is None else self.held_out.to_dict()
        return {
            "name": self.name,
            **held_out,
            "gates": [gate.to_dict() for gate in self.gates],
            "tasks": tasks,
        }


def load_tasks(
    names: Sequence[str], folder: Path | None, limit: int | None, texts: Sequence[Path] = ()
) -> tuple[TaskRows, ...]:
    """The first `limit` items of each task from `folder`, and windows of each of `texts`, all checked.

    Raises InputError, PromptError, UnsupportedError.
    """
    tasks = tasks_named(names)
    if tasks and folder is None:
        raise InputError("tasks without data", found=", ".join(names), hint="name their folder with --data")
    if folder is not None and not folder.is_dir():
        raise InputError(f"--data {folder}", found="no such folder")
    named = [TaskRows(task, read_rows(task, find_data(task, folder), limit)) for task in tasks if folder]
    return (*named, *(TaskRows(text_task(path), read_windows(path, limit)) for path in texts))


def run_suite(
    subject: Subject, origin: Origin | None, tasks: Sequence[TaskRows], store: Store, progress: Progress
) -> SuiteResult:
    """Held-out data first, where the original is known, then tasks, by default those of the recipe.

    Raises InputError where there is neither.
    """
    held_out = None if origin is None else _held_out(subject, origin, progress)
    validation = None if origin is None else origin.recipe.validation
    gates: tuple[GateResult, ...] = ()
    if held_out is not None and validation is not None:
        gates = evaluate_gates(validation.gates.all, held_out.metrics)
    asked = tasks or recipe_tasks(validation)
    if held_out is None and not asked:
        raise InputError("nothing to measure by", found=subject.name, hint="name --tasks or --text")
    original = None if origin is None else origin.open
    stages = StageCache(store.layout.stages)
    outcomes = run_beside_original(subject.open, original, asked, stages, progress)
    if not tasks:
        gates += task_gates(validation, outcomes)
    return SuiteResult(subject.name, held_out, gates, outcomes)


def _held_out(subject: Subject, origin: Origin, progress: Progress) -> ValidationResult | None:
    """The recipe's held-out data on the subject's engine beside the original."""
    validation, engine = origin.recipe.validation, subject.engine
    if validation is None or engine is None:
        return None
    held_out = load_held_out(validation.data, origin.model.tokenizer)
    original = partial(OriginalLogits, origin.model.plan, origin.model.source)
    found = validate_engines([engine], original, held_out, origin.calibration, progress, subject.settings)
    return found[engine.target]
