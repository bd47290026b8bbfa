"""`gristmill validate`: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import CommandLine


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small task."""
    folder = tmp_path_factory.mktemp("data") / "mc"
    folder.mkdir()
    rows = [
        {"id": str(n), "question": f"Sack {n} holds", "choices": ["flour", "stones"], "answer": n % 2}
        for n in range(40)
    ]
    (folder / "arc_easy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder.parent


@pytest.fixture(scope="module")
def validated(built: CommandLine, data: Path) -> Any:
    """The document of the tiny artifact with its task."""
    return built.json("validate", "tiny", "--tasks", "arc_easy", "--data", data)


def test_an_artifact_is_compared_with_its_original_as_when_it_was_built(
    built: CommandLine, validated: Any
) -> None:
    built_with = built.json("inspect", "tiny")["validation"]["native-x86"]
    assert validated["kl"] == pytest.approx(built_with["kl"])
    assert validated["perplexity"] == pytest.approx(built_with["perplexity"])


def test_a_task_is_answered_by_the_artifact_and_its_original(validated: Any) -> None:
    task = validated["tasks"]["arc_easy"]
    original = task["original"]
    assert (task["items"], task["metric"], task["truncated"]) == (40, "acc_norm", 0)
    assert original["difference"] == pytest.approx(task["values"]["acc_norm"] - original["base"])
    assert original["low"] <= original["difference"] <= original["high"]
    assert original["verdict"] in ("better", "worse", "not enough data")


def test_a_model_has_tasks_but_no_original(built: CommandLine, data: Path, tiny_llama: Path) -> None:
    asked = ("--tasks", "arc_easy", "--data", data, "--limit", 8)
    document = built.json("validate", tiny_llama, *asked)
    assert document["tasks"]["arc_easy"]["original"] is None
    assert document["tasks"]["arc_easy"]["items"] == 8
    assert "kl" not in document


def test_an_interrupt_loses_no_finished_items(built: CommandLine, data: Path) -> None:
    asked = ("validate", "tiny", "--tasks", "arc_easy", "--data", data, "--compute", "bfloat16")
    done = built.stop_when("stages/tasks/*.partial/items-00000.json", signal.SIGINT, *asked)
    assert done.returncode == 130
    assert "the same command continues there" in done.stderr
    assert built.run(*asked).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tasks", "arc_eazy", "--data", "."), "unknown task; found arc_eazy; expected arc_easy"),
        (("--tasks", "arc_easy"), "tasks without data; found arc_easy; name their folder with --data"),
        (("--tasks", "arc_easy", "--data", "nowhere"), "nowhere; found no such folder"),
    ],
)
def test_what_cannot_be_run_is_refused_before_a_model_is_loaded(
    built: CommandLine, arguments: tuple[str, ...], message: str
) -> None:
    done = built.run("validate", "tiny", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_model_takes_no_engine_options(built: CommandLine, tiny_llama: Path) -> None:
    done = built.run("validate", tiny_llama, "--compute", "int8")
    assert done.returncode == 2
    assert "--compute int8" in done.stderr


def test_a_model_without_tasks_is_not_said_to_be_validated(built: CommandLine, tiny_llama: Path) -> None:
    done = built.run("validate", tiny_llama)
    assert done.returncode == 2
    assert "nothing to measure by" in done.stderr
    assert "name --tasks or --text" in done.stderr
