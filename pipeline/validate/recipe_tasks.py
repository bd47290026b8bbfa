"""The tasks of a recipe and their gates."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.pipeline.validate.gates import GateResult
from gristmill.pipeline.validate.tasks.catalogue import TASKS
from gristmill.pipeline.validate.tasks.outcome import TaskOutcome, TaskRows
from gristmill.pipeline.validate.tasks.rows import read_rows
from gristmill.recipes.schema import ValidationSettings
from gristmill.runtime.errors import InputError

__all__ = ["recipe_tasks", "require_resident", "task_gates"]


def recipe_tasks(validation: ValidationSettings | None) -> tuple[TaskRows, ...]:
    """The items of each task, checked. Raises PromptError, UnsupportedError for one that can't run here."""
    entries = () if validation is None else validation.tasks
    return tuple(
        TaskRows(TASKS[entry.task], read_rows(TASKS[entry.task], entry.path, entry.limit))
        for entry in entries
    )


def require_resident(tasks: Sequence[TaskRows], *, streamed: bool) -> None:
    """Raise InputError for tasks of a model whose weights do not fit into memory: they run on the whole."""
    if tasks and streamed:
        raise InputError(
            "validate.tasks",
            found="a model that is streamed through memory",
            expected="one that fits",
            hint="leave the tasks out, or allow more --memory",
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
