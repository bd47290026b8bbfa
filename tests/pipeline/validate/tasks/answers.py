"""Tasks of the data measured on answers that are given."""

from __future__ import annotations

from pathlib import Path

from gristmill.pipeline.validate.tasks.catalogue import TASKS
from gristmill.pipeline.validate.tasks.rows import find_data, read_rows
from gristmill.pipeline.validate.tasks.task import Measured, Row
from tests.pipeline.validate.tasks.fake_model import FakeModel

__all__ = ["answered", "share", "task_rows"]


def task_rows(name: str, data_dir: Path, limit: int | None = None) -> tuple[Row, ...]:
    """The first items of a task."""
    return read_rows(TASKS[name], find_data(TASKS[name], data_dir), limit)


def answered(name: str, rows: tuple[Row, ...], answers: list[str]) -> list[Measured]:
    """What a model that gives `answers` in turn is worth."""
    left = iter(answers)
    return TASKS[name].measure(FakeModel(answer=lambda prompt: next(left)), rows)


def share(measured: list[Measured], metric: str) -> float:
    """The mean of a metric."""
    return sum(each.values[metric] for each in measured) / len(measured)
