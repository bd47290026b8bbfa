"""Texts in bits a byte: what is read, what is counted."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gristmill.pipeline.validate.tasks.text import read_windows, text_task
from gristmill.runtime.errors import PromptError
from tests.pipeline.validate.tasks.fake_model import FakeModel


def test_bits_are_counted_over_the_bytes_that_were_predicted(tmp_path: Path) -> None:
    path = tmp_path / "zh.txt"
    path.write_text("粉" * 2000)
    task, rows = text_task(path), read_windows(path, None)
    (measured,) = task.measure(FakeModel(lambda each: -math.log(2) * len(each.text)), rows)
    assert measured.values["bits_per_byte"] == pytest.approx(1 / 3)  # a bit for each character of 3 bytes


def test_the_file_s_name_is_the_domain(tmp_path: Path) -> None:
    assert text_task(tmp_path / "sql.txt.gz").name == "text:sql"
    assert text_task(tmp_path / "docqa.jsonl").name == "text:docqa"


def test_chats_are_read_for_what_they_say(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    chat = {"messages": [{"role": "user", "content": "a" * 1500}], "reference": "b" * 600}
    path.write_text(json.dumps(chat) + "\n")
    (row,) = read_windows(path, None)
    assert row["text"] == "a" * 1500 + "\n\n" + "b" * 498


def test_the_limit_takes_the_first_windows(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("flour " * 2000)
    assert [row["id"] for row in read_windows(path, 3)] == ["0", "2000", "4000"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b"", "0 characters"),
        ("a.txt", b"\xff" * 3000, "can't decode"),
        ("a.jsonl", b"{}\n", "messages"),
        ("a.jsonl", b"no json\n", "Expecting value"),
        ("a.txt.gz", b"no gzip", "damaged gzip"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PromptError, match=reason):
        read_windows(tmp_path / name, None)
