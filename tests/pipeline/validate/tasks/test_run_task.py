"""Runs of tasks: kept answers are not asked again, and only where they must be the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gristmill.pipeline.progress import SilentProgress
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.tasks.catalogue import TASKS
from gristmill.pipeline.validate.tasks.model import Continuation, Prompt
from gristmill.pipeline.validate.tasks.outcome import TaskRows, run_tasks
from gristmill.pipeline.validate.tasks.run import run_task
from gristmill.pipeline.validate.tasks.task import TaskResult
from gristmill.runtime.errors import OutsideError
from tests.listener import Listener
from tests.pipeline.validate.tasks.fake_model import FakeModel

ROWS: list[dict[str, Any]] = [{"id": str(n), "context": f"one and {n}", "target": " two"} for n in range(70)]
LAMBADA = TASKS["lambada"]


def _run(model: FakeModel, store: Path, rows: list[dict[str, Any]] = ROWS) -> TaskResult:
    return run_task(model, LAMBADA, rows, StageCache(store), SilentProgress())


def test_results_stand_item_by_item_in_order(tmp_path: Path) -> None:
    result = _run(FakeModel(lambda each: -2.0 if each.context.endswith("3") else -0.5), tmp_path)
    assert result.ids == tuple(row["id"] for row in ROWS)
    assert result.values() == tuple(float(not row["context"].endswith("3")) for row in ROWS)
    assert result.means["acc"] == pytest.approx(63 / 70)


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    model = FakeModel()
    first = _run(model, tmp_path)
    assert _run(model, tmp_path) == first
    assert model.asked == 70


def test_an_interrupted_run_goes_on_behind_its_last_chunk(tmp_path: Path) -> None:
    def interrupt(each: Continuation) -> float:
        if each.context == "one and 40":
            raise KeyboardInterrupt
        return 0.0

    with pytest.raises(KeyboardInterrupt):
        _run(FakeModel(interrupt), tmp_path)
    model = FakeModel()
    _run(model, tmp_path)
    assert model.asked == 70 - 32


def test_another_model_is_asked_anew(tmp_path: Path) -> None:
    _run(FakeModel(), tmp_path)
    other = FakeModel(identity={"weights": "other"})
    _run(other, tmp_path)
    assert other.asked == 70


def test_a_changed_row_is_asked_anew(tmp_path: Path) -> None:
    _run(FakeModel(), tmp_path)
    model = FakeModel()
    _run(model, tmp_path, [*ROWS[:-1], {**ROWS[-1], "target": " three"}])
    assert model.asked == 70


def test_a_server_is_asked_each_time_and_leaves_nothing_behind(tmp_path: Path) -> None:
    model = FakeModel(identity=None)
    _run(model, tmp_path)
    _run(model, tmp_path)
    assert model.asked == 140
    assert not list(tmp_path.iterdir())


def test_a_result_is_told_before_a_later_task_fails(tmp_path: Path) -> None:
    told = Listener()

    def fail(prompt: Prompt) -> str:
        raise OutsideError("the server is gone")

    question = {"id": "0", "prompt": "1 + 1?", "reference": "2", "examples": ""}
    tasks = [TaskRows(LAMBADA, tuple(ROWS)), TaskRows(TASKS["gsm8k"], (question,))]
    with pytest.raises(OutsideError):
        run_tasks(lambda: FakeModel(answer=fail, identity=None), tasks, StageCache(tmp_path), told)
    assert told.notes == ["lambada: acc 1.0000"]
