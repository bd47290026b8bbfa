"""The compatibility table: each field in one class, and the README shows what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from gristmill.runtime.server import fields
from gristmill.runtime.server.field_table import field_table
from gristmill.runtime.server.fields import NO_EFFECT, UNSUPPORTED_CHAT, UNSUPPORTED_COMPLETION
from gristmill.runtime.server.protocol import ChatRequest, CompletionRequest


@pytest.mark.parametrize(
    ("kind", "unsupported"),
    [(CompletionRequest, UNSUPPORTED_COMPLETION), (ChatRequest, UNSUPPORTED_CHAT)],
)
def test_every_field_is_in_one_class_only(kind: type[BaseModel], unsupported: dict[str, object]) -> None:
    supported = set(kind.model_fields)
    assert not supported & set(unsupported)
    assert not NO_EFFECT & (supported | set(unsupported))


def test_the_readme_shows_the_table() -> None:
    readme = (Path(fields.__file__).parent / "README.md").read_text()
    _, _, rest = readme.partition("<!-- fields -->\n")
    shown, _, _ = rest.partition("\n<!-- /fields -->")
    assert shown == field_table()


def test_every_served_field_says_what_it_does() -> None:
    for kind in (CompletionRequest, ChatRequest):
        assert all(field.description for field in kind.model_fields.values())
