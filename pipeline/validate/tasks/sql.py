"""Text to SQL: the query is run on SQLite and its rows are compared with those of the accepted queries."""

from __future__ import annotations

import math
import re
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from gristmill.pipeline.validate.tasks.model import Answer, Prompt, TaskModel
from gristmill.pipeline.validate.tasks.task import Measured, Row, Task
from gristmill.runtime.errors import PromptError

__all__ = ["SQL", "query_of", "rows_of", "same_rows"]

Rows = list[tuple[object, ...]]

_MAX_TOKENS = 256
_SECONDS = 5.0
_MOST_ROWS = 10_000
_MOST_BYTES = 16 << 20  # of a result
_MOST_HEAP = 64 << 20  # that SQLite itself may take
_MOST_VALUE = 1 << 20  # bytes of one value: a step of SQLite's machine may copy it
_STEPS = 1_000  # of that machine, between two looks at the clock
_BLOCK = re.compile(r"```(?:sql|sqlite)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)


def query_of(answer: str) -> str:
    """The first query of an answer: of its fenced block, else from SELECT or WITH to the semicolon."""
    found = _BLOCK.search(answer)
    text = found[1] if found else answer
    begin = re.search(r"\b(?:SELECT|WITH)\b", text, re.IGNORECASE)
    return text[begin.start() :].partition(";")[0].strip() if begin else ""


def rows_of(script: str, query: str) -> Rows | None:
    """What a query gives on the database that `script` makes; None if it is wrong or goes too far.

    The database lives in memory. The query may only read: an authorizer refuses all else, files and
    extensions included; its time, rows and memory are bounded.
    """
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(f"PRAGMA temp_store=MEMORY; PRAGMA hard_heap_limit={_MOST_HEAP}; {script}")
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE)
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        database.set_authorizer(_authorize)
        end = time.monotonic() + _SECONDS
        database.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        try:
            return _bounded(database.execute(query)) if query else None
        except (sqlite3.Error, sqlite3.Warning, MemoryError, OverflowError, UnicodeError):
            return None


def _bounded(cursor: sqlite3.Cursor) -> Rows | None:
    """All rows, or None where they are too many or too large."""
    found: Rows = []
    size = 0
    for row in cursor:
        found.append(row)
        size += sum(map(sys.getsizeof, (row, *row)))
        if len(found) > _MOST_ROWS or size > _MOST_BYTES:
            return None
    return found


def same_rows(found: Rows, expected: Rows, *, ordered: bool) -> bool:
    """Whether two results hold the same rows, in the same order if that was asked for."""
    ours, theirs = ([tuple(map(_plain, row)) for row in rows] for rows in (found, expected))
    return ours == theirs if ordered else Counter(ours) == Counter(theirs)


def _authorize(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


def _plain(value: object) -> object:
    """Numbers that are equal but for rounding become equal."""
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(f"{value:.6g}")
    return value


def _measure(model: TaskModel, rows: Sequence[Row]) -> list[Measured]:
    """`execution`: the rows of one of the accepted queries. `valid`: SQLite runs it."""
    prompts = [
        Prompt(messages=({"role": "user", "content": row["prompt"]},), max_tokens=_MAX_TOKENS) for row in rows
    ]
    answers = model.generate(prompts)
    return [_judge(row, answer) for row, answer in zip(rows, answers, strict=True)]


def _judge(row: Row, answer: Answer) -> Measured:
    found = rows_of(row["script"], query_of(answer.text))
    if found is None:
        return Measured({"execution": 0.0, "valid": 0.0}, answer.text, answer.truncated)
    right = any(
        expected is not None and same_rows(found, expected, ordered="order by" in query.lower())
        for query in row["reference"]
        for expected in [rows_of(row["script"], query.rstrip().rstrip(";"))]
    )
    return Measured({"execution": float(right), "valid": 1.0}, answer.text, answer.truncated)


def _with_scripts(path: Path, rows: Sequence[Row]) -> list[Row]:
    """Each row with the script of its database, from `db/` beside the file. Raises PromptError."""
    scripts: dict[str, str] = {}
    for name in sorted({row["db"] for row in rows}):
        script = path.parent / "db" / f"{name}.sqlite.sql"
        try:
            scripts[name] = script.read_text(encoding="utf-8")
            sqlite3.connect(":memory:").executescript(scripts[name]).connection.close()
        except (OSError, UnicodeError, sqlite3.Error) as error:
            raise PromptError(f"database {name} of {path.name}", found=f"{script}: {error}") from error
    return [{**row, "script": scripts[row["db"]]} for row in rows]


SQL = Task(
    "text2sql",
    "execution",
    ("defog_text2sqlite.jsonl", "defog_text2sqlite.jsonl.gz", "text2sql.jsonl"),
    {"prompt": str, "reference": list, "db": str},
    _measure,
    _with_scripts,
)
