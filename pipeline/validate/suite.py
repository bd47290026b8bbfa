"""The validation suite: an artifact, a checkpoint or a server, on held-out data and tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gristmill.artifacts.store import Store
from gristmill.pipeline.engine_proof import load_default
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.compare import compare_engines
from gristmill.pipeline.validate.data import load_held_out
from gristmill.pipeline.validate.differences import Difference, paired_difference
from gristmill.pipeline.validate.gates import GateResult, evaluate_gates
from gristmill.pipeline.validate.logits import ExecutorLogits
from gristmill.pipeline.validate.original import OriginalLogits
from gristmill.pipeline.validate.result import ValidationResult
from gristmill.pipeline.validate.subject import Origin, Subject
from gristmill.pipeline.validate.tasks.catalogue import tasks_named
from gristmill.pipeline.validate.tasks.model import TaskModel
from gristmill.pipeline.validate.tasks.rows import find_data, read_rows
from gristmill.pipeline.validate.tasks.run import run_task
from gristmill.pipeline.validate.tasks.task import Row, Task, TaskResult
from gristmill.runtime.errors import InputError

__all__ = ["SuiteResult", "TaskOutcome", "TaskRows", "load_tasks", "run_suite", "run_tasks"]


@dataclass(frozen=True, slots=True)
class TaskRows:
    """A task with the items to be asked."""

    task: Task
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """A task's result, and how it differs from the original's where that is known."""

    result: TaskResult
    original: Difference | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "metric": self.result.metric,
            "items": len(self.result.items),
            "truncated": self.result.truncated,
            "values": self.result.means,
            "original": None if self.original is None else asdict(self.original),
        }


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


def load_tasks(names: Sequence[str], folder: Path | None, limit: int | None) -> tuple[TaskRows, ...]:
    """The first `limit` items of each task from `folder`, checked. Raises InputError, PromptError."""
    tasks = tasks_named(names)
    if tasks and folder is None:
        raise InputError("tasks without data", found=", ".join(names), hint="name their folder with --data")
    if folder is not None and not folder.is_dir():
        raise InputError(f"--data {folder}", found="no such folder")
    return tuple(TaskRows(task, read_rows(task, find_data(task, folder), limit)) for task in tasks if folder)


def run_suite(subject: Subject, tasks: Sequence[TaskRows], store: Store, progress: Progress) -> SuiteResult:
    """Held-out data first, where the original is known, then the tasks on the subject and on its original."""
    stages = StageCache(store.layout.stages)
    origin = subject.origin
    held_out = None if origin is None else _held_out(subject, origin, progress)
    gates: tuple[GateResult, ...] = ()
    if held_out is not None and origin is not None and origin.recipe.validation is not None:
        gates = evaluate_gates(origin.recipe.validation.gates.all, held_out.metrics)
    results = run_tasks(subject.open, tasks, stages, progress) if tasks else []
    differences: list[Difference | None] = [None] * len(results)
    if results and origin is not None:
        progress.note(f"the original: {origin.model.source.name}")
        base = run_tasks(origin.open, tasks, stages, progress)
        differences = [
            paired_difference(before.values(), after.values())
            for before, after in zip(base, results, strict=True)
        ]
    outcomes = [TaskOutcome(*pair) for pair in zip(results, differences, strict=True)]
    return SuiteResult(subject.name, held_out, gates, tuple(outcomes))


def run_tasks(
    open_model: Callable[[], TaskModel], tasks: Sequence[TaskRows], stages: StageCache, progress: Progress
) -> list[TaskResult]:
    """Each task's result; the model is opened for it and closed behind it."""
    with closing(open_model()) as model:
        return [run_task(model, each.task, each.rows, stages, progress) for each in tasks]


def _held_out(subject: Subject, origin: Origin, progress: Progress) -> ValidationResult | None:
    """The recipe's held-out data on the subject's engine beside the original."""
    validation, engine = origin.recipe.validation, subject.engine
    if validation is None or engine is None:
        return None
    held_out = load_held_out(validation.data, origin.model.tokenizer)
    progress.stage("validate", sum(entry.samples.tokens for entry in held_out), "tokens")
    tokens = max(len(window) for entry in held_out for window in entry.windows)
    with closing(load_default(engine, tokens, subject.settings)) as executor:
        compared = compare_engines(
            OriginalLogits(origin.model.plan, origin.model.source),
            {engine.target: ExecutorLogits(executor)},
            held_out,
            calibration=origin.calibration,
            on_tokens=progress.advance,
        )
    return compared[engine.target]
