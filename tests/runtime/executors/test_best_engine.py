"""Which of an artifact's engines serves, unless one is named."""

from __future__ import annotations

import platform

import pytest

from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.executors.load import EXECUTORS, best_engine, engine_fault


def test_the_native_engine_is_preferred() -> None:
    assert best_engine(["reference", "native-x86"]) == "native-x86"


def test_an_artifact_without_it_is_served_by_what_it_has() -> None:
    assert best_engine(["reference", "of a later version"]) == "reference"


def test_a_machine_that_can_not_run_it_falls_back_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert engine_fault("native-x86") == "this machine is aarch64"
    assert best_engine(["native-x86", "reference"]) == "reference"
    with pytest.raises(UnsupportedError, match=r"native-x86 \(this machine is aarch64\)"):
        best_engine(["native-x86"])


def test_every_engine_that_is_known_runs_here() -> None:
    assert [engine_fault(target) for target in EXECUTORS] == [None] * len(EXECUTORS)
