"""Tasks on a model and on its original, and how the two differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from gristmill.pipeline.progress import Progress
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.differences import Difference
from gristmill.pipeline.validate.tasks.model import TaskModel
from gristmill.pipeline.validate.tasks.run import run_task
from gristmill.pipeline.validate.tasks.task import Row, Task, TaskResult, difference

__all__ = ["OpenModel", "TaskOutcome", "TaskRows", "run_beside_original", "run_tasks"]

OpenModel = Callable[[], TaskModel]


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

    def numbers(self) -> dict[str, float]:
        """The same as numbers alone, for manifests: each metric, and what is known of the difference."""
        change = {} if self.original is None else asdict(self.original)
        known = {name: float(value) for name, value in change.items() if name not in ("value", "verdict")}
        return {"items": float(len(self.result.items)), **self.result.means, **known}


def run_tasks(
    open_model: OpenModel, tasks: Sequence[TaskRows], stages: StageCache, progress: Progress
) -> list[TaskResult]:
    """Each task's result, told as soon as it is known; the model is opened and closed here."""
    results: list[TaskResult] = []
    with closing(open_model()) as model:
        for each in tasks:
            result = run_task(model, each.task, each.rows, stages, progress)
            progress.note(f"{result.task}: {result.metric} {result.means[result.metric]:.4f}")
            results.append(result)
    return results


def run_beside_original(
    open_model: OpenModel,
    original: OpenModel | None,
    tasks: Sequence[TaskRows],
    stages: StageCache,
    progress: Progress,
) -> tuple[TaskOutcome, ...]:
    """Each task on both, one model in memory at a time; without an original, on the model alone."""
    if not tasks:
        return ()
    results = run_tasks(open_model, tasks, stages, progress)
    if original is None:
        return tuple(TaskOutcome(result, None) for result in results)
    progress.note("the same tasks on the original model")
    base = run_tasks(original, tasks, stages, progress)
    return tuple(
        TaskOutcome(after, difference(before, after)) for before, after in zip(base, results, strict=True)
    )
