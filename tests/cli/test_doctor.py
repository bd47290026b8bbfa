"""`gristmill doctor`: a page for a person, a document for a program."""

from __future__ import annotations

import json

import pytest


def test_it_shows_cores_kernels_and_speeds(gristmill) -> None:
    outcome = gristmill("doctor")
    assert outcome.code == 0
    for part in ("instruction sets", "the fastest", "effective", "GB/s", "int8 arithmetic"):
        assert part in outcome.out


def test_json_holds_the_same(gristmill) -> None:
    shown = json.loads(gristmill("doctor", "--json").out)
    assert set(shown["multiply_adds_per_s"]) == {"int8", "bfloat16", "float32"}
    assert shown["instruction_set"] == shown["instruction_sets"][-1]


def test_a_wrong_instruction_set_exits_2(gristmill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_ISA", "avx9000")
    outcome = gristmill("doctor")
    assert outcome.code == 2
    assert "expected scalar" in outcome.err
