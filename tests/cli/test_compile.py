"""`compile` on the command line, and what an engine is asked for."""

from __future__ import annotations

import json

import pytest


def test_the_list_says_what_each_target_makes_and_needs(gristmill) -> None:
    rows = json.loads(gristmill("compile", "--list", "--json").out)
    assert {row["target"] for row in rows} == {"awq", "compressed-tensors", "native-x86"}
    assert all(row["makes"] and row["needs"] for row in rows)
    table = gristmill("compile", "--list").out
    assert all(row["target"] in table for row in rows)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "compile needs a REF and a --target"),
        (["tiny"], "found no --target"),
        (["--target", "awq"], "found no REF"),
        (["tiny", "--target", "awq"], "no artifact tiny"),
    ],
)
def test_what_is_missing_is_said(gristmill, arguments: list[str], error: str) -> None:
    outcome = gristmill("compile", *arguments)
    assert outcome.code == 2
    assert error in outcome.err


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--compute", "float64", "int8 or bfloat16 or float32"),
        ("--kv-cache-dtype", "int2", "auto or float32"),
        ("--verify", "never", "quick or full"),
    ],
)
def test_a_value_that_no_engine_has_is_refused_before_the_store_is_read(
    gristmill, option: str, value: str, expected: str
) -> None:
    outcome = gristmill("chat", "nothing", "Hi", option, value)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {option}; found {value}; expected {expected}")
