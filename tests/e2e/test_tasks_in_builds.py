"""A build with tasks: they run on what is served, gate it, and lie in the artifact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import CommandLine
from tests.conftest import WriteRecipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, write_recipe: WriteRecipe) -> Path:
    folder = tmp_path_factory.mktemp("with-tasks")
    rows = (
        {"id": str(n), "question": f"Sack {n} holds", "choices": ["flour", "stones"], "answer": n % 2}
        for n in range(40)
    )
    (folder / "arc_easy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    validate = {
        "data": [{"path": "heldout.jsonl", "window": 128, "tokens": 512}],
        "tasks": [{"task": "arc_easy", "path": "arc_easy.jsonl", "limit": 32, "gate": "> -90%"}],
    }
    return write_recipe(folder, validate=validate, compile=["native-x86"])


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory, recipe: Path) -> CommandLine:
    """A store with the recipe built."""
    command = CommandLine(tmp_path_factory.mktemp("store"))
    done = command.run("build", recipe)
    assert done.returncode == 0, done.stderr
    return command


def test_the_manifest_has_the_task_on_the_engine_that_serves(command: CommandLine) -> None:
    validation = command.json("inspect", "tiny")["validation"]
    task = validation["native-x86"]["tasks"]["arc_easy"]
    assert task["items"] == 32
    assert task["difference"] == pytest.approx(task["acc_norm"] - task["base"])
    assert task["low"] <= task["difference"] <= task["high"]
    assert validation["reference"]["tasks"] == {}


def test_the_gate_is_among_those_of_the_artifact(command: CommandLine) -> None:
    (artifact,) = command.store.glob("artifacts/*/manifest.json")
    gates = json.loads(artifact.read_text())["gates"]
    assert [(gate["metric"], gate["passed"]) for gate in gates] == [("tasks.arc_easy", True)]


def test_validating_the_artifact_repeats_its_own_tasks(command: CommandLine) -> None:
    recorded = command.json("inspect", "tiny")["validation"]["native-x86"]["tasks"]["arc_easy"]
    found: Any = command.json("validate", "tiny")
    assert found["tasks"]["arc_easy"]["values"]["acc_norm"] == recorded["acc_norm"]
    assert [gate["metric"] for gate in found["gates"]] == ["tasks.arc_easy"]


def test_a_failed_gate_of_a_task_stops_the_build(command: CommandLine, recipe: Path) -> None:
    done = command.run("build", recipe, "--set", 'validate.tasks.0.gate="> 90%"')
    assert done.returncode == 1
    assert "validation gates failed: tasks.arc_easy" in done.stderr


def test_a_bad_row_is_refused_before_a_weight_is_read(command: CommandLine, recipe: Path) -> None:
    (recipe.parent / "bad.jsonl").write_text('{"id": "1"}\n')
    done = command.run("build", recipe, "--set", "validate.tasks.0.path=bad.jsonl", "--set", "name=other")
    assert done.returncode == 2
    assert "bad.jsonl:1: without question, choices, answer" in done.stderr
    assert "quantize" not in done.stderr
