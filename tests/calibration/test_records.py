"""Chat records: what is read, what is refused with its line, and what makes two records the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.calibration.prompt_files import FileFault, read_bytes
from gristmill.calibration.records import ChatRecord, paragraph_hash, read_chats, record_hash

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


def read_one(path: Path, record: object) -> ChatRecord:
    path.write_text(json.dumps(record))
    records, faults = read_chats(path)
    assert faults == []
    (only,) = records
    return only


def test_a_reference_text_is_the_last_turn(tmp_path: Path) -> None:
    record = read_one(tmp_path / "a.jsonl", {"messages": [USER], "reference": "Hello"})
    assert record.messages == (USER, {"role": "assistant", "content": "Hello"})


@pytest.mark.parametrize(
    "reference",
    [
        {"f": {"a": 1}},
        {"name": "f", "arguments": {"a": 1}},
        [{"name": "f", "arguments": {"a": 1}}],
        [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    ],
)
def test_a_reference_of_calls_is_a_turn_of_calls(tmp_path: Path, reference: object) -> None:
    record = read_one(tmp_path / "a.jsonl", {"messages": [USER], "reference": reference})
    assert record.messages[-1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}


def test_any_other_reference_is_its_json(tmp_path: Path) -> None:
    record = read_one(tmp_path / "a.jsonl", {"messages": [USER], "reference": {"größe": 3}})
    assert record.messages[-1] == {"role": "assistant", "content": '{"größe": 3}'}


def test_a_reference_message_is_taken_as_it_is(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert read_one(tmp_path / "a.jsonl", {"messages": [USER], "reference": message}).messages[-1] == message


def test_gzip_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps({"messages": [USER]}).encode() + b"\n\n"))
    records, faults = read_chats(path)
    assert (len(records), faults) == (1, [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"messages": [', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('["a"]', "a JSON object with messages is expected, found a list"),
        ('{"prompt": "x"}', "no messages"),
        ('{"messages": []}', "no messages"),
        ('{"messages": ["x"]}', "messages[0] is text, not an object"),
        ('{"messages": [{"role": "human", "content": "x"}]}', "unknown role 'human'"),
        ('{"messages": [{"content": "x"}]}', "unknown role None"),
        ('{"messages": [{"role": "user", "content": ""}]}', "messages[0] (user) has no content"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "a part that is not text"),
        ('{"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}', "without function.name"),
        (
            '{"messages": [{"role": "user", "content": "x"}], "tools": {}, "n": 1, "tools": 3}',
            "tools is not a list",
        ),
    ],
)
def test_a_wrong_line_is_named_with_its_reason(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": [USER]}) + "\n\n" + line + "\n")
    records, faults = read_chats(path)
    assert len(records) == 1
    assert [(fault.line, reason in str(fault)) for fault in faults] == [(3, True)]


def test_bytes_that_are_no_utf8_are_a_fault_of_their_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"messages": [{"role": "user", "content": "\xff"}]}')
    _, faults = read_chats(path)
    assert "a.jsonl:1: not UTF-8" in str(faults[0])


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.txt", None, "no such file"),
        ("a.gz", b"\x1f\x8b\x08\x00cut", "damaged gzip"),
        ("b.gz", b"text", "damaged gzip"),
    ],
)
def test_a_file_that_cant_be_read_is_one_fault(
    tmp_path: Path, name: str, data: bytes | None, reason: str
) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(FileFault, match=reason):
        read_bytes(path)


def a_record(**changes: Any) -> ChatRecord:
    value = {
        "messages": (USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}),
        "tools": (),
    } | changes
    return ChatRecord(1, **value)


def with_arguments(arguments: object, call_id: str) -> ChatRecord:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return a_record(messages=(USER, {"role": "assistant", "content": None, "tool_calls": [call]}))


def test_spacing_ids_and_form_of_arguments_make_no_other_record() -> None:
    spaced = a_record(
        messages=({"role": "user", "content": [{"type": "text", "text": " Hi\n"}]}, a_record().messages[1])
    )
    same = [a_record(), spaced, with_arguments('{"a":  1}', "x")]
    assert len({record_hash(record) for record in same}) == 1


def test_another_word_tool_or_argument_makes_another_record() -> None:
    others = [
        a_record(),
        a_record(messages=({"role": "user", "content": "Ho"}, a_record().messages[1])),
        a_record(tools=({"type": "function"},)),
        with_arguments({"a": 2}, "x"),
    ]
    assert len({record_hash(record) for record in others}) == 4


def test_short_paragraphs_have_no_hash() -> None:
    assert paragraph_hash(" = Heading = \n") is None


def test_paragraphs_that_differ_in_spacing_are_the_same() -> None:
    text = "The quick brown fox jumps over the lazy dog."
    assert paragraph_hash(text) == paragraph_hash(text.replace(" ", "\n "))
