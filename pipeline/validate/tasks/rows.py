"""The items of a task, read from JSON lines and checked before a model is asked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from gristmill.calibration.prompt_files import Fault, FileFault, read_lines
from gristmill.pipeline.validate.tasks.task import Row, Task
from gristmill.runtime.errors import PromptError

__all__ = ["beside", "find_data", "read_rows"]


def read_rows(task: Task, path: Path, limit: int | None = None) -> tuple[Row, ...]:
    """The first `limit` items of a file, all by default, each with its `id` and the task's fields.

    Raises PromptError with every fault in its details, and for a file without items; UnsupportedError
    for a task that this machine can't run, so that nobody waits for a build to hear of it.
    """
    task.require(task.name)
    rows = _read(f"the data of task {task.name}", path, {"id": str, **task.fields})
    if not rows:
        raise PromptError(f"the data of task {task.name}", found=f"no item in {path}", expected="one a line")
    chosen = rows[:limit]
    repeated = _repeated(row["id"] for row in chosen)
    if repeated is not None:
        raise PromptError(f"the data of task {task.name}", found=f"id {repeated} twice in {path}")
    return tuple(task.complete(path, chosen))


def beside(path: Path, name: str, fields: Mapping[str, type]) -> list[Row]:
    """The rows of another file in the folder of a task's data. Raises PromptError."""
    return _read(f"{name} beside {path.name}", path.with_name(name), fields)


def find_data(task: Task, folder: Path) -> Path:
    """The task's file anywhere below `folder`. Raises PromptError if there is none."""
    for name in task.files:
        found = next((path for path in sorted(folder.rglob(name)) if path.is_file()), None)
        if found is not None:
            return found
    raise PromptError(
        f"task {task.name} has no data", found=f"none in {folder}", expected=" or ".join(task.files)
    )


def _read(what: str, path: Path, fields: Mapping[str, type]) -> list[Row]:
    faults: list[Fault] = []
    rows: list[Row] = []
    try:
        for number, line in read_lines(path):
            row = _parse(line)
            reason = _fault(row, fields)
            if reason is not None:
                faults.append(Fault(path, number, reason))
            elif isinstance(row, dict):
                rows.append(row)
    except FileFault as error:
        faults.append(error.fault)
    if faults:
        raise PromptError(
            what,
            found=f"{len(faults)} bad rows" if faults[0].line else faults[0].reason,
            expected=f"JSON lines with {', '.join(fields)}",
            details=[str(fault) for fault in faults],
        )
    return rows


def _parse(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _fault(row: object, fields: Mapping[str, type]) -> str | None:
    if not isinstance(row, dict):
        return "not a JSON object"
    missing = [name for name in fields if name not in row]
    if missing:
        return f"without {', '.join(missing)}"
    wrong = [name for name, kind in fields.items() if not isinstance(row[name], kind)]
    if wrong:
        return f"{wrong[0]} is {type(row[wrong[0]]).__name__}, expected {fields[wrong[0]].__name__}"
    if "choices" in fields and "answer" in fields:
        return _choice_fault(row["choices"], row["answer"])
    return None


def _choice_fault(choices: list[object], answer: int) -> str | None:
    if len(choices) < 2 or not all(isinstance(choice, str) and choice for choice in choices):
        return "choices are not two texts or more"
    return None if 0 <= answer < len(choices) else f"answer {answer} of {len(choices)} choices"


def _repeated(ids: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(ids).items() if count > 1), None)
