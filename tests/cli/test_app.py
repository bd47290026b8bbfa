"""How the command ends: help, closed pipes, faults of ours."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from gristmill.cli import look


def test_help_lists_every_command_and_exits_0(gristmill) -> None:
    outcome = gristmill("--help")
    assert outcome.code == 0
    for name in ("build", "compile", "list", "inspect", "verify", "chat", "generate", "serve", "doctor"):
        assert name in outcome.out


def test_no_argument_shows_how_to_use_it(gristmill) -> None:
    outcome = gristmill()
    assert outcome.code == 2
    assert "Usage: gristmill" in outcome.err


def test_the_version_is_that_of_the_package(gristmill) -> None:
    outcome = gristmill("--version")
    assert (outcome.code, outcome.out) == (0, f"gristmill {version('gristmill')}\n")


def test_an_interrupt_promises_to_go_on_only_where_that_is_so(
    gristmill, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gristmill.facade.build", interrupted)
    monkeypatch.setattr("gristmill.facade.engine_folder", interrupted)
    assert gristmill("build", "demo").code == gristmill("chat", "demo").code == 130
    assert "the same command continues there" in gristmill("build", "demo").err
    assert gristmill("chat", "demo").err == "interrupted\n"


def test_an_empty_store_lists_nothing(gristmill) -> None:
    assert gristmill("list", "--json").out.strip() == "[]"


def test_a_fault_of_ours_exits_4_in_one_line(gristmill, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(store: object) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(look, "listing", fail)
    outcome = gristmill("list")
    assert outcome.code == 4
    assert "fault of ours: ZeroDivisionError: by zero" in outcome.err.splitlines()[0]
    assert "Traceback" not in outcome.err


def test_memory_that_the_system_refuses_is_no_fault_of_ours(
    gristmill, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(store: object) -> None:
        raise MemoryError("no memory for 8 bytes")

    monkeypatch.setattr(look, "listing", refuse)
    outcome = gristmill("list")
    assert outcome.code == 3
    assert outcome.err.startswith(
        "error: the system has no more memory; found no memory for 8 bytes; free some"
    )


def test_a_reader_that_leaves_early_is_no_error(store: Path) -> None:
    command = (
        f"{sys.executable} -m gristmill.cli.app list --json --store {store} | true; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_is_closed_is_no_fault(store: Path, closed: str) -> None:
    command = f"{sys.executable} -m gristmill.cli.app list --store {store} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
