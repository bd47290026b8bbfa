"""`report` writes a page and says the same in the terminal and as JSON."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gristmill.artifacts.store import Store
from tests.command_line import CommandLine

GOLDEN = Path(__file__).parents[1] / "golden" / "artifact_v1"


def test_a_build_is_reported(built: CommandLine, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = built.run("report", "tiny", "--output", page)
    assert done.returncode == 0, done.stderr
    assert "on native-x86" in done.stdout
    assert "gates" in done.stdout
    assert str(page) in done.stdout
    assert "tiny:latest" in page.read_text()


def test_the_json_holds_what_inspect_says_and_more(built: CommandLine, tmp_path: Path) -> None:
    found = built.json("report", "tiny", "--output", tmp_path / "page.html")
    assert built.json("inspect", "tiny").items() <= found.items()
    assert found["passed"] is True
    assert found["missing"] == []
    assert found["builds"]["points"][0]["present"] is True
    assert len(found["layers"]["errors"]) == sum(found["schemes"].values())
    assert found["worst"][0]["pieces"]
    assert [stage["stage"] for stage in found["record"]["stages"]][:2] == ["load", "calibrate"]


def test_an_artifact_from_elsewhere_says_what_is_not_known(built: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "pulled"
    shutil.copytree(Store(built.store).resolve("tiny").folder, folder)
    elsewhere = CommandLine(tmp_path / "empty-store")
    done = elsewhere.run("report", folder, "--output", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "this store has no build record" in done.stdout
    assert "this store has no build record" in (tmp_path / "page.html").read_text()


def test_an_older_artifact_is_reported_without_what_it_lacks(tmp_path: Path) -> None:
    done = CommandLine(tmp_path / "empty-store").run("report", GOLDEN, "--output", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "the artifact does not carry them" in page
    assert "the artifact does not describe them" in page


def test_a_damaged_report_file_is_refused_by_name(built: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(Store(built.store).resolve("tiny").folder, folder)
    layers = folder / "report" / "layers.json"
    layers.chmod(0o644)
    layers.write_bytes(layers.read_bytes().replace(b"output", b"weight"))
    done = built.run("report", folder, "--output", tmp_path / "page.html")
    assert done.returncode == 1
    assert "report/layers.json" in done.stderr
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(("place", "code"), [("", 2), ("file/page.html", 3)])
def test_a_page_that_can_not_be_written_is_one_line(
    built: CommandLine, tmp_path: Path, place: str, code: int
) -> None:
    (tmp_path / "file").write_text("in the way")
    done = built.run("report", "tiny", "--output", tmp_path / place)
    assert done.returncode == code
    assert len(done.stderr.strip().splitlines()) == 1
