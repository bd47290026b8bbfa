"""The README of the recipes says what the schema says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

from gristmill import recipes
from gristmill.recipes import METRICS, ValidationGates, preset_names
from gristmill.recipes.explain import schema_fields
from gristmill.recipes.faults import key_text


@pytest.fixture(scope="module")
def readme() -> str:
    return (Path(recipes.__file__).parent / "README.md").read_text()


def default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None or field.default in (None, ()):
        return ""
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    if isinstance(field.default, tuple):
        return f"`[{', '.join(map(str, field.default))}]`"
    return f"`{field.default}`"


def test_every_key_is_documented_with_its_default(readme: str) -> None:
    table = readme.partition("## Every key")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `([^`]+)` \| (.*?) ?\| (.+) \|$", table, flags=re.MULTILINE)
    schema = [(key_text(key), default_text(field), field.description) for key, field in schema_fields()]
    assert documented == schema


def test_every_file_is_listed(readme: str) -> None:
    files = {path.name for path in Path(recipes.__file__).parent.glob("*.py")} - {"__init__.py"}
    assert files == set(re.findall(r"`(\w+\.py)`", readme.partition("## How to write one")[0]))


def test_every_shipped_recipe_is_listed(readme: str) -> None:
    assert [name for name in preset_names() if f"`{name}`" not in readme] == []


def test_gates_are_the_metrics_that_are_computed() -> None:
    assert list(ValidationGates.model_fields) == list(METRICS)
