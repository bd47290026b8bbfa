"""All tasks by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gristmill.pipeline.validate.tasks.code import CODE
from gristmill.pipeline.validate.tasks.last_word import LAMBADA
from gristmill.pipeline.validate.tasks.math_answer import MATH
from gristmill.pipeline.validate.tasks.multiple_choice import MULTIPLE_CHOICE
from gristmill.pipeline.validate.tasks.sql import SQL
from gristmill.pipeline.validate.tasks.task import Task
from gristmill.pipeline.validate.tasks.tool_calls import TOOL_CALLS
from gristmill.runtime.errors import InputError

__all__ = ["TASKS", "tasks_named"]

_ALL = (*MULTIPLE_CHOICE, LAMBADA, *MATH, *CODE, SQL, TOOL_CALLS)

TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in _ALL})


def tasks_named(names: Sequence[str]) -> tuple[Task, ...]:
    """The tasks of these names, each once. Raises InputError with the nearest names."""
    for name in names:
        if name not in TASKS:
            close = difflib.get_close_matches(name, TASKS, n=2)
            raise InputError(
                "unknown task",
                found=name or "no name",
                expected=" or ".join(close) if close else ", ".join(sorted(TASKS)),
            )
    return tuple(TASKS[name] for name in dict.fromkeys(names))
