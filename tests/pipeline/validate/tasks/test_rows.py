"""Data of tasks: what is found, what is refused and how."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gristmill.pipeline.validate.tasks.catalogue import TASKS, tasks_named
from gristmill.pipeline.validate.tasks.rows import find_data, read_rows
from gristmill.pipeline.validate.tasks.sandbox import Limits, Outcome
from gristmill.runtime.errors import InputError, PromptError, UnsupportedError

ARC = TASKS["arc_easy"]
GOOD = {"id": "a", "question": "Water is", "choices": ["wet", "dry"], "answer": 0}


def _write(folder: Path, *rows: object) -> Path:
    path = folder / "arc_easy.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_reads_its_whole_data(name: str, data_dir: Path) -> None:
    task = TASKS[name]
    assert len(read_rows(task, find_data(task, data_dir))) >= 100


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_a_machine_that_can_not_lock_programs_in_is_told_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, name: str, data_dir: Path
) -> None:
    def locked_out(program: str, limits: Limits) -> Outcome:
        raise OSError("unshare: Operation not permitted")

    monkeypatch.setattr("gristmill.pipeline.validate.tasks.sandbox.run_program", locked_out)
    with pytest.raises(UnsupportedError, match=f"task {name} .* can't lock it in; found unshare"):
        read_rows(TASKS[name], find_data(TASKS[name], data_dir))


def test_the_limit_takes_the_first_items(tmp_path: Path) -> None:
    path = _write(tmp_path, GOOD, {**GOOD, "id": "b"}, {**GOOD, "id": "c"})
    assert [row["id"] for row in read_rows(ARC, path, 2)] == ["a", "b"]


def test_gzip_is_read(tmp_path: Path) -> None:
    path = tmp_path / "arc_easy.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    assert read_rows(ARC, find_data(ARC, tmp_path)) == (GOOD,)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1], "not a JSON object"),
        ({"id": "a", "question": "?"}, "without choices, answer"),
        ({**GOOD, "choices": "wet"}, "choices is str, expected list"),
        ({**GOOD, "choices": ["wet"]}, "not two texts"),
        ({**GOOD, "choices": ["wet", ""]}, "not two texts"),
        ({**GOOD, "answer": 2}, "answer 2 of 2 choices"),
        ({**GOOD, "answer": -1}, "answer -1 of 2 choices"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, row: object, reason: str) -> None:
    with pytest.raises(PromptError) as caught:
        read_rows(ARC, _write(tmp_path, GOOD, row))
    (detail,) = caught.value.details
    assert f"arc_easy.jsonl:2: {reason}" in detail or reason in detail


def test_all_bad_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(PromptError) as caught:
        read_rows(ARC, _write(tmp_path, 1, GOOD, 2))
    assert len(caught.value.details) == 2


def test_an_id_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="id a twice"):
        read_rows(ARC, _write(tmp_path, GOOD, GOOD))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no item in"):
        read_rows(ARC, _write(tmp_path))


def test_a_task_without_data_is_refused_with_the_names_it_may_have(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"arc_easy has no data.*arc_easy\.jsonl or arc_easy\.jsonl\.gz"):
        find_data(ARC, tmp_path)


def test_an_unknown_task_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="arc_easy"):
        tasks_named(["arc_eazy"])
