"""Every command, file and recipe that a README names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from gristmill.cli.app import create_app
from gristmill.recipes.presets import preset_names

ROOT = Path(__file__).parent.parent
READMES = sorted(
    path
    for path in [ROOT / "README.md", ROOT / ".github" / "CONTRIBUTING.md", *ROOT.glob("*/README.md")]
    if path.exists()
)
COMMANDS = typer.main.get_command(create_app()).commands  # type: ignore[attr-defined]
MAKE_TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def lines_of_code(readme: Path) -> list[str]:
    """The lines of all code blocks, prompts and comments cut off."""
    blocks = re.findall(
        r"^(?:```.*?\n(.*?)```|((?:    .*\n)+))", readme.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    lines = [line for fenced, indented in blocks for line in (fenced or indented).splitlines()]
    return [line.split("  #")[0].strip().removeprefix("$ ") for line in lines]


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_gristmill_command_and_option_exists(readme: Path) -> None:
    for line in lines_of_code(readme):
        if not line.startswith("gristmill "):
            continue
        name, *arguments = line.split()[1:]
        assert name in COMMANDS, line
        known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        given = {argument.split("=")[0] for argument in arguments if argument.startswith("--")}
        assert given <= known, line
        if name == "build" and not arguments[0].endswith(".yaml"):
            assert arguments[0] in preset_names(), line


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_make_target_exists(readme: Path) -> None:
    text = readme.read_text()
    named = {line.split()[1] for line in lines_of_code(readme) if re.match(r"make [a-z]", line)}
    named |= set(re.findall(r"`make ([a-z][a-z-]*)", text))
    assert named <= MAKE_TARGETS


def test_the_readme_shows_how_to_begin() -> None:
    code = lines_of_code(ROOT / "README.md")
    assert "make demo" in code
    assert "make test" in code


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_of_a_table_exists(readme: Path) -> None:
    """A table's first column names files below the README's own folder."""
    for cell in re.findall(r"^\| (`[^|]+`) \|", readme.read_text(), flags=re.MULTILINE):
        for name in re.findall(r"`([\w./-]+(?:\.py|\.yaml|/))`", cell):
            assert (readme.parent / name).exists() or (ROOT / name).exists(), f"{readme}: {name}"
