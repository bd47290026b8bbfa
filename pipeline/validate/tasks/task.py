"""A task: its data, what it asks of a model, and how an answer counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.pipeline.validate.differences import MARGIN, Difference, paired_difference
from gristmill.pipeline.validate.tasks.model import TaskModel

__all__ = ["Measure", "Measured", "Row", "Task", "TaskResult", "difference"]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of one item: each metric's value, 0 or 1 where it is right or wrong, and the answer."""

    values: Mapping[str, float]
    answer: str
    truncated: bool = False


Measure = Callable[[TaskModel, Sequence[Row]], list[Measured]]


@dataclass(frozen=True, slots=True)
class Task:
    """A task by its name. `metric` is the one that verdicts and gates go by.

    `files` are the names that its data may have, `fields` the keys of every
    row with their types; `complete` adds to the rows what lies beside the file.
    `require` raises UnsupportedError, naming the task, where this machine can't run it.
    """

    name: str
    metric: str
    files: tuple[str, ...]
    fields: Mapping[str, type]
    measure: Measure
    complete: Callable[[Path, Sequence[Row]], Sequence[Row]] = lambda path, rows: rows
    require: Callable[[str], None] = lambda name: None
    lower_is_better: bool = False
    margin: float = MARGIN


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one model made of a task, item by item.

    `margin` is the largest difference of the metric that counts as none.
    """

    task: str
    metric: str
    lower_is_better: bool
    margin: float
    ids: tuple[str, ...]
    items: tuple[Measured, ...]

    @property
    def means(self) -> dict[str, float]:
        """Each metric over all items."""
        return {name: sum(self.values(name)) / len(self.items) for name in sorted(self.items[0].values)}

    @property
    def truncated(self) -> int:
        """Items whose beginning did not fit into the context."""
        return sum(item.truncated for item in self.items)

    def values(self, metric: str | None = None) -> tuple[float, ...]:
        """One value an item, of the main metric by default."""
        return tuple(item.values[metric or self.metric] for item in self.items)


def difference(base: TaskResult, other: TaskResult) -> Difference:
    """How `other` differs from `base` on the same items of one task, by its main metric."""
    return paired_difference(
        base.values(), other.values(), margin=base.margin, higher_is_better=not base.lower_is_better
    )
