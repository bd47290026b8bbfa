"""Whole commands as real processes, on a tiny model and a store of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import CommandLine


@pytest.fixture
def command(tmp_path: Path) -> CommandLine:
    """The command line with an empty store."""
    return CommandLine(tmp_path / "store")
