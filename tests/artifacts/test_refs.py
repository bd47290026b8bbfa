"""REFs: what each form means and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.artifacts.refs import FolderRef, StoreRef, parse_ref
from gristmill.runtime.errors import ArtifactError

DIGEST = f"sha256:{'ab' * 32}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", StoreRef("a")),
        ("support-assistant.v2_x:1.0", StoreRef("support-assistant.v2_x", "1.0")),
        (f"a@{DIGEST}", StoreRef("a", None, DIGEST)),
        (f"a:v1@{DIGEST[:19]}", StoreRef("a", "v1", DIGEST[:19])),
        ("./a", FolderRef(Path("a"))),
        (".", FolderRef(Path())),
        ("/x/a:b", FolderRef(Path("/x/a:b"))),
        ("x/a", FolderRef(Path("x/a"))),
        ("~/a", FolderRef(Path.home() / "a")),
    ],
)
def test_a_ref_means_what_its_form_says(text: str, expected: FolderRef | StoreRef) -> None:
    assert parse_ref(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A",
        "-a",
        "a-",
        "a b",
        "a\n",
        "a:",
        "a:-x",
        "a:x y",
        "a@",
        "a@sha256:",
        f"a@{DIGEST}0",
        "a@sha256:ABCDEFABCDEF",
        "a@sha256:abcdef12345",
        "a@md5:abcdefabcdef",
        "ä",
        "a" * 129,
        "a:" + "x" * 129,
    ],
)
def test_a_malformed_ref_is_refused(text: str) -> None:
    with pytest.raises(ArtifactError):
        parse_ref(text)


def test_a_ref_is_written_as_it_is_read() -> None:
    for text in ("a", "a:v1", f"a@{DIGEST}", f"a:v1@{DIGEST}"):
        assert str(parse_ref(text)) == text
