"""The command line in this process: exit code, stdout and stderr of one command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gristmill.cli.app import main


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of the test's own."""
    return tmp_path / "store"


@pytest.fixture
def gristmill(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, store: Path) -> Run:
    """Run one command against the test's store."""
    monkeypatch.setenv("GRISTMILL_STORE", str(store))

    def run(*arguments: object) -> Outcome:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, captured.out, captured.err)

    return run
