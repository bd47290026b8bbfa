"""The tasks of a recipe and their gates."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.pipeline.validate.gates import GateResult
from gristmill.pipeline.validate.tasks.catalogue import TASKS
from gristmill.pipeline.validate.tasks.outcome import TaskOutcome, TaskRows
from gristmill.pipeline.validate.tasks.rows import read_rows
from gristmill.recipes.schema import ValidationSettings

__all__ = ["recipe_tasks", "task_gates"]


def recipe_tasks(validation: ValidationSettings | None) -> tuple[TaskRows, ...]:
    """The items of each task, checked. Raises PromptError."""
    entries = () if validation is None else validation.tasks
    return tuple(
        TaskRows(TASKS[entry.task], read_rows(TASKS[entry.task], entry.path, entry.limit))
        for entry in entries
    )


def task_gates(
    validation: ValidationSettings | None, outcomes: Sequence[TaskOutcome]
) -> tuple[GateResult, ...]:
    """The gates of the tasks, held against the differences to the original that are known."""
    entries = () if validation is None else validation.tasks
    return tuple(
        GateResult(entry.gate, outcome.original.difference)
        for entry, outcome in zip(entries, outcomes, strict=True)
        if entry.gate is not None and outcome.original is not None
    )
