"""Run tasks on a model; what was answered is kept, so that an interrupt loses at most a few items."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from pydantic import TypeAdapter

from gristmill.pipeline.progress import Progress
from gristmill.pipeline.stages import StageCache, code_version, stage_key
from gristmill.pipeline.validate.tasks.model import TaskModel
from gristmill.pipeline.validate.tasks.task import Measured, Row, Task, TaskResult
from gristmill.runtime.files import canonical_json, write_atomic

__all__ = ["run_task"]

_CHUNK = 32
_STAGE = "tasks"
_CODE = (
    "gristmill.pipeline.validate.tasks",
    "gristmill.runtime.engine",
    "gristmill.runtime.executors",
    "gristmill.runtime.kernels",
    "gristmill.runtime.sampling",
)
_ITEMS = TypeAdapter(tuple[Measured, ...])


def run_task(
    model: TaskModel, task: Task, rows: Sequence[Row], stages: StageCache, progress: Progress
) -> TaskResult:
    """The model's answers to all rows, at least one.

    Answers of a model with an identity are kept in `stages`, 32 items at a
    time, and taken from there by the next run of the same task on the same rows.
    """
    progress.stage(task.name, len(rows), "items")
    if model.identity is None:
        items = chain.from_iterable(_measure(model, task, chunk, progress) for chunk in _chunks(rows))
        return _result(task, rows, items)
    digest = hashlib.sha256(canonical_json(list(rows))).hexdigest()
    inputs = {"model": dict(model.identity), "task": task.name, "rows": digest}
    key = stage_key(_STAGE, inputs, code_version(_CODE))
    if (done := stages.finished(_STAGE, key)) is not None:
        progress.skip(len(rows))
    else:
        with stages.open(_STAGE, key) as stage:
            for index, chunk in enumerate(_chunks(rows)):
                _keep(_file(stage.folder, index), model, task, chunk, progress)
            done = stage.finish()
    files = (_file(done, index) for index, _ in enumerate(_chunks(rows)))
    return _result(task, rows, chain.from_iterable(map(_read, files)))


def _keep(file: Path, model: TaskModel, task: Task, chunk: Sequence[Row], progress: Progress) -> None:
    if file.exists():
        progress.skip(len(chunk))
    else:
        write_atomic(file, _ITEMS.dump_json(_measure(model, task, chunk, progress)))


def _measure(model: TaskModel, task: Task, chunk: Sequence[Row], progress: Progress) -> tuple[Measured, ...]:
    measured = tuple(task.measure(model, chunk))
    progress.advance(len(chunk))
    return measured


def _result(task: Task, rows: Sequence[Row], items: Iterator[Measured]) -> TaskResult:
    return TaskResult(task.name, task.metric, tuple(row["id"] for row in rows), tuple(items))


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    return (rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK))


def _file(folder: Path, index: int) -> Path:
    return folder / f"items-{index:05}.json"


def _read(file: Path) -> tuple[Measured, ...]:
    return _ITEMS.validate_json(file.read_bytes())
