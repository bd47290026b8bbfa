"""Chat records: one JSON object a line, checked before anything else is done with it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.calibration.prompt_files import Fault, read_lines
from gristmill.runtime.chat_form import Message
from gristmill.runtime.chat_messages import message_text
from gristmill.runtime.errors import RequestError

__all__ = ["ChatRecord", "paragraph_hash", "read_chats", "record_hash"]

_ROLES = ("system", "developer", "user", "assistant", "tool")
_ROLES_WITH_TEXT = ("system", "developer", "user")
_MIN_PARAGRAPH = 40
"""Characters below which a paragraph says nothing about where it came from: headings, "Yes."."""


@dataclass(frozen=True, slots=True)
class ChatRecord:
    """A conversation, its reference already appended as the last turn."""

    line: int
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]


class _RecordError(Exception):
    """What is wrong with one record, in words."""


def read_chats(path: Path) -> tuple[list[ChatRecord], list[Fault]]:
    """All good records of a JSON-lines file, and a fault for every other line. Raises FileFault."""
    records: list[ChatRecord] = []
    faults: list[Fault] = []
    for number, line in read_lines(path):
        try:
            records.append(_parse_record(number, line))
        except (_RecordError, RequestError) as error:
            faults.append(Fault(path, number, str(error)))
    return records, faults


def _parse_record(number: int, line: bytes) -> ChatRecord:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise _RecordError(f"not UTF-8 at byte {error.start + 1}") from error
    except (ValueError, RecursionError) as error:
        raise _RecordError(f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise _RecordError(f"a JSON object with messages is expected, found {_kind(value)}")
    messages = value.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _RecordError("no messages")
    for index, message in enumerate(messages):
        _check_message(message, index)
    tools = value.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise _RecordError("tools is not a list of objects")
    if value.get("reference") is not None:
        messages = [*messages, _reference_message(value["reference"])]
    return ChatRecord(number, tuple(messages), tuple(tools))


def _check_message(message: object, index: int) -> None:
    if not isinstance(message, dict):
        raise _RecordError(f"messages[{index}] is {_kind(message)}, not an object")
    role = message.get("role")
    if role not in _ROLES:
        raise _RecordError(f"messages[{index}] has the unknown role {role!r}, expected {', '.join(_ROLES)}")
    calls = message.get("tool_calls")
    if not message_text(message, index) and not calls and role in _ROLES_WITH_TEXT:
        raise _RecordError(f"messages[{index}] ({role}) has no content")
    for call in calls or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _RecordError(f"messages[{index}] has a tool call without function.name")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", type(None): "null"}
    return names.get(type(value), "a number")


def _reference_message(reference: object) -> Message:
    """The last turn: text, a message, or calls in one of the forms that data sets use."""
    if isinstance(reference, dict) and reference.get("role") == "assistant":
        _check_message(reference, -1)
        return reference
    if isinstance(reference, str):
        return {"role": "assistant", "content": reference}
    calls = _reference_calls(reference)
    if calls is None:
        return {"role": "assistant", "content": json.dumps(reference, ensure_ascii=False)}
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _reference_calls(reference: object) -> list[dict[str, Any]] | None:
    """Calls from [{name, arguments}], [{function: {...}}], one of them, or {name: arguments}."""
    entries = reference if isinstance(reference, list) else [reference]
    if isinstance(reference, dict) and not {"name", "function"} & set(reference):
        entries = [{"name": name, "arguments": arguments} for name, arguments in reference.items()]
    calls = []
    for index, entry in enumerate(entries):
        function = entry.get("function", entry) if isinstance(entry, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return None
        arguments = function.get("arguments", {})
        if not isinstance(arguments, str | dict):
            return None
        call = {"name": function["name"], "arguments": arguments}
        calls.append({"id": f"call{index:05}", "type": "function", "function": call})
    return calls or None


def record_hash(record: ChatRecord) -> str:
    """A name for what a conversation says: spacing, ids and the form of arguments don't matter."""
    messages = [
        [message["role"], _squeeze(message_text(message)), _calls_content(message.get("tool_calls") or ())]
        for message in record.messages
    ]
    return _hash([messages, record.tools])


def paragraph_hash(paragraph: str) -> str | None:
    """A name for a paragraph's text, its spacing aside; None for one too short to tell anything."""
    text = _squeeze(paragraph)
    return _hash(text) if len(text) >= _MIN_PARAGRAPH else None


def _calls_content(calls: Sequence[Mapping[str, Any]]) -> list[list[object]]:
    content: list[list[object]] = []
    for call in calls:
        arguments = call["function"].get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = _squeeze(arguments)
        content.append([call["function"]["name"], arguments])
    return content


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
