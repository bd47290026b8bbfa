"""Plain text: bits a byte, which models with different tokens can be compared by."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from gristmill.calibration.prompt_files import FileFault, read_bytes, read_lines
from gristmill.pipeline.validate.tasks.model import Continuation, TaskModel
from gristmill.pipeline.validate.tasks.task import Measured, Row, Task
from gristmill.runtime.errors import PromptError

__all__ = ["read_windows", "text_task"]

_WINDOW = 2000
_CONTEXT = 200  # characters that are read but not counted: nothing can be said of a text's first word
_MARGIN = 0.01


def text_task(path: Path) -> Task:
    """The text of a file as a task; the file's name tells the domain."""
    domain = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    return Task(f"text:{domain}", "bits_per_byte", (), {}, _measure, lower_is_better=True, margin=_MARGIN)


def read_windows(path: Path, limit: int | None) -> tuple[Row, ...]:
    """The first windows of 2,000 characters, 100 by default; of `.jsonl`, what the messages say.

    Raises PromptError for a file that can't be read or holds less than a window.
    """
    try:
        text = _text(path)
    except FileFault as error:
        raise PromptError(f"--text {path}", found=error.fault.reason) from error
    except (ValueError, TypeError, KeyError) as error:
        raise PromptError(f"--text {path}", found=str(error), expected="UTF-8 text, or chats") from error
    starts = range(0, len(text) - _WINDOW + 1, _WINDOW)[: limit or 100]
    if not starts:
        raise PromptError(f"--text {path}", found=f"{len(text)} characters", expected=f"at least {_WINDOW}")
    return tuple({"id": str(start), "text": text[start : start + _WINDOW]} for start in starts)


def _text(path: Path) -> str:
    if ".jsonl" not in path.suffixes:
        return read_bytes(path).decode()
    return "\n\n".join(_spoken(json.loads(line) for _, line in read_lines(path)))


def _spoken(chats: Iterator[Row]) -> Iterator[str]:
    for chat in chats:
        yield from (message["content"] for message in chat["messages"] if message.get("content"))
        if isinstance(chat.get("reference"), str):
            yield chat["reference"]


def _measure(model: TaskModel, rows: Sequence[Row]) -> list[Measured]:
    asked = [Continuation(row["text"][:_CONTEXT], row["text"][_CONTEXT:]) for row in rows]
    return [
        Measured(
            {"bits_per_byte": -score.logprob / math.log(2) / len(each.text.encode())},
            "",
            score.truncated,
        )
        for each, score in zip(asked, model.score(asked), strict=True)
    ]
