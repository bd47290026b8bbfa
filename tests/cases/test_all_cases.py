"""Every case of the list is proven by a test with its number, or is excepted with its reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
CASES = {f"C{number:02}" for number in range(1, 48)}


def _proven() -> set[str]:
    """The cases that a test's name begins with, wherever it stands."""
    sources = (path.read_text() for path in TESTS.rglob("test_*.py"))
    return {f"C{number}" for source in sources for number in re.findall(r"^def test_c(\d\d)_", source, re.M)}


def test_each_case_is_proven_or_excepted_and_never_both() -> None:
    excepted = json.loads((TESTS / "cases" / "exceptions.json").read_text())
    proven = _proven()
    assert proven | excepted.keys() == CASES
    assert not proven & excepted.keys()
    assert all(reason.endswith(".") for reason in excepted.values())
