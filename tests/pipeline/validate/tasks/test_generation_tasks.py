"""Tasks with written answers: the data's own references are right, wrong ones are not."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from gristmill.pipeline.validate.tasks.catalogue import TASKS
from gristmill.pipeline.validate.tasks.code import code_block
from gristmill.pipeline.validate.tasks.math_answer import last_number
from gristmill.pipeline.validate.tasks.model import Prompt
from gristmill.pipeline.validate.tasks.sql import query_of, rows_of, same_rows
from gristmill.pipeline.validate.tasks.tool_calls import accepts, calls_of
from tests.pipeline.validate.tasks.answers import answered, share, task_rows
from tests.pipeline.validate.tasks.fake_model import FakeModel


def test_worked_solutions_of_gsm8k_are_right(data_dir: Path) -> None:
    rows = task_rows("gsm8k", data_dir)
    assert share(answered("gsm8k", rows, [row["solution"] for row in rows]), "exact_match") == 1.0


def test_the_number_before_is_not_right(data_dir: Path) -> None:
    rows = task_rows("gsm8k", data_dir, 100)
    wrong = [f"It is {row['reference']}. No: {float(row['reference'].replace(',', '')) + 1}" for row in rows]
    assert share(answered("gsm8k", rows, wrong), "exact_match") == 0.0


def test_five_examples_stand_before_a_question_and_their_calculator_marks_are_gone(data_dir: Path) -> None:
    seen: list[Prompt] = []

    def note(prompt: Prompt) -> str:
        seen.append(prompt)
        return ""

    TASKS["gsm8k"].measure(FakeModel(answer=note), task_rows("gsm8k", data_dir, 1))
    assert seen[0].text.count("Question: ") == 6
    assert "<<" not in seen[0].text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 1,234 in all.", 1234.0),
        ("#### -5", -5.0),
        ("7 #### 8.50\n9 not", 9.0),
        ("答案是18。", 18.0),
        ("", None),
    ],
)
def test_the_last_number(text: str, number: float | None) -> None:
    assert last_number(text) == number


def test_a_fenced_block_is_taken_from_an_answer() -> None:
    assert code_block("Sure:\n```python\nx = 1\n```\nDone.") == "x = 1\n"
    assert code_block("```\nx = 1") == "x = 1"
    assert code_block("x = 1") == "x = 1"


def test_reference_queries_give_the_accepted_rows(data_dir: Path) -> None:
    rows = task_rows("text2sql", data_dir)
    answers = [f"```sql\n{row['reference'][-1]}\n```" for row in rows]
    measured = answered("text2sql", rows, answers)
    assert share(measured, "valid") == 1.0
    assert share(measured, "execution") == 1.0


def test_queries_of_other_questions_are_wrong(data_dir: Path) -> None:
    rows = task_rows("text2sql", data_dir)
    answers = [rows[(n + 75) % 150]["reference"][0] for n in range(150)]
    assert share(answered("text2sql", rows, answers), "execution") < 0.05


SCRIPT = "CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES (1, 'x'), (2, 'y');"


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE t",
        "DELETE FROM t",
        "INSERT INTO t VALUES (3, 'z')",
        "ATTACH DATABASE '/tmp/hostile.db' AS h",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('/tmp/x.so')",
        "VACUUM INTO '/tmp/hostile.db'",
        "SELECT 1; SELECT 2",
        "SELECT * FROM nowhere",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
        "SELECT zeroblob(1000000000)",
        "",
    ],
)
def test_hostile_queries_give_nothing(query: str) -> None:
    assert rows_of(SCRIPT, query) is None


@pytest.mark.parametrize("query", ["SELECT y FROM n", "SELECT count(*) FROM (SELECT DISTINCT y FROM n)"])
def test_the_memory_of_a_query_is_bounded(query: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    many = "WITH RECURSIVE n(x, y) AS (SELECT 1, '' UNION ALL SELECT x + 1, hex(zeroblob(450000)) || x FROM n"
    assert rows_of(SCRIPT, f"{many} LIMIT 1000) {query}") is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB, of 900 MB


def test_an_endless_query_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.pipeline.validate.tasks.sql._SECONDS", 0.2)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    assert rows_of(SCRIPT, endless) is None


def test_rows_are_compared_in_order_only_where_order_was_asked_for() -> None:
    assert same_rows([(1, "x"), (2, "y")], [(2, "y"), (1.0, "x")], ordered=False)
    assert not same_rows([(1, "x"), (2, "y")], [(2, "y"), (1, "x")], ordered=True)
    assert not same_rows([(1, "x")], [(1, "x"), (1, "x")], ordered=False)
    assert same_rows([(1 / 3,)], [(0.33333333,)], ordered=True)


def test_the_query_is_taken_out_of_what_stands_around_it() -> None:
    assert query_of("Sure!\n```sql\nSELECT 1;\n```") == "SELECT 1"
    assert query_of("The query is: select a from t; It selects.") == "select a from t"
    assert query_of("I can't.") == ""


def _first_accepted(reference: Any) -> str:
    """An answer with the reference's calls, each argument with its first accepted value."""
    if isinstance(reference, dict):
        return json.dumps([{"name": name, "arguments": given} for name, given in reference.items()])
    calls = []
    for entry in reference:
        ((name, options),) = entry.items()
        given = {key: values[0] for key, values in options.items() if values and values[0] != ""}
        calls.append({"name": name, "arguments": given})
    return json.dumps(calls)


def test_reference_calls_are_right(data_dir: Path) -> None:
    rows = task_rows("tool_calls", data_dir)
    answers = [_first_accepted(row["reference"]) for row in rows]
    assert share(answered("tool_calls", rows, answers), "exact") >= 0.99


def test_calls_of_other_items_are_wrong(data_dir: Path) -> None:
    rows = tuple(row for row in task_rows("tool_calls", data_dir) if row["reference"])
    answers = [_first_accepted(rows[(n + 7) % len(rows)]["reference"]) for n in range(len(rows))]
    assert share(answered("tool_calls", rows, answers), "exact") < 0.02


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        ('[{"name": "f", "arguments": {"a": 1}}]', [("f", {"a": 1})]),
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', [("f", {"a": 1})]),
        ('```json\n{"name": "f", "parameters": {}}\n```', [("f", {})]),
        ('{"name": "f"} and {"name": "g"}', [("f", {}), ("g", {})]),
        ("Nothing fits: []", []),
        ("I can't do that.", None),
        ('[{"f": 1}]', None),
        ('{"name": "f", "arguments": "a"}', None),
        ("[" * 5000, None),
    ],
)
def test_calls_are_read_from_what_models_write(answer: str, calls: Any) -> None:
    assert calls_of(answer) == calls


def test_an_argument_may_be_missing_only_where_that_is_accepted() -> None:
    reference = [{"f": {"a": [1, 2], "b": ["", "x"]}}]
    assert accepts(reference, [("f", {"a": 2})])
    assert accepts(reference, [("f", {"a": 1, "b": "X"})])
    assert not accepts(reference, [("f", {"b": "x"})])
    assert not accepts(reference, [("f", {"a": 1, "c": 3})])
    assert not accepts(reference, [("f", {"a": 1}), ("f", {"a": 1})])
    assert not accepts(reference, [("f", {"a": True})])


def test_where_no_call_is_expected_words_are_right_and_a_call_is_wrong(data_dir: Path) -> None:
    rows = tuple(row for row in task_rows("tool_calls", data_dir) if not row["reference"])[:2]
    measured = answered("tool_calls", rows, ["None of them fits.", '[{"name": "f", "arguments": {}}]'])
    assert [each.values["exact"] for each in measured] == [1.0, 0.0]
