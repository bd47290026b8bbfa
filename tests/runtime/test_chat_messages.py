"""Messages are brought into the form that a template takes, and left alone where it takes them."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.runtime.chat_form import MessageForm
from gristmill.runtime.chat_messages import inline_calls, inline_tools, message_text, normalise_messages
from gristmill.runtime.errors import RequestError

PARTS = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
OBJECT, TEXT = {"city": "Zürich"}, '{"city": "Zürich"}'


def call(arguments: object) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def normalised(message: dict[str, Any], form: MessageForm) -> dict[str, Any]:
    (only,) = normalise_messages([message], form)
    return only


def test_parts_are_joined_for_a_template_of_text() -> None:
    assert normalised({"role": "user", "content": PARTS}, MessageForm())["content"] == "a b"


def test_parts_stay_where_the_template_reads_them() -> None:
    assert normalised({"role": "user", "content": PARTS}, MessageForm(parts=True))["content"] == PARTS


def test_text_becomes_a_part_for_a_template_of_parts() -> None:
    form = MessageForm(text=False, parts=True)
    assert normalised({"role": "user", "content": "a"}, form)["content"] == [{"type": "text", "text": "a"}]


def test_missing_content_becomes_empty_text() -> None:
    assert normalised({"role": "assistant"}, MessageForm())["content"] == ""


@pytest.mark.parametrize(
    ("accepted", "given", "expected"),
    [
        (("text",), None, ""),
        (("null",), "", None),
        (("text", "null"), None, None),
        (("part",), "", [{"type": "text", "text": ""}]),
    ],
)
def test_empty_content_beside_calls_is_what_the_template_takes(
    accepted: Any, given: object, expected: object
) -> None:
    form = MessageForm(calls=True, call_content=accepted, arguments=(dict,))
    message = {"role": "assistant", "content": given, "tool_calls": [call(OBJECT)]}
    assert normalised(message, form)["content"] == expected


@pytest.mark.parametrize(
    ("takes", "given", "expected"),
    [
        ((dict,), TEXT, OBJECT),
        ((str,), OBJECT, TEXT),
        ((dict, str), TEXT, TEXT),
        ((dict, str), OBJECT, OBJECT),
    ],
)
def test_arguments_take_the_templates_form(takes: Any, given: object, expected: object) -> None:
    form = MessageForm(calls=True, arguments=takes)
    message = {"role": "assistant", "content": "", "tool_calls": [call(given)]}
    assert normalised(message, form)["tool_calls"][0]["function"]["arguments"] == expected


@pytest.mark.parametrize("arguments", ["{cut", "[1]", "3"])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [call(arguments)]}
    with pytest.raises(RequestError, match="not a JSON object") as caught:
        normalised(message, MessageForm(calls=True, arguments=(dict,)))
    assert caught.value.field == "messages[0].tool_calls"


@pytest.mark.parametrize("content", [[{"type": "image_url"}], ["a"], 3])
def test_content_that_is_no_text_is_refused(content: object) -> None:
    with pytest.raises(RequestError, match=r"messages\[4\].content"):
        message_text({"role": "user", "content": content}, 4)


def test_calls_can_be_written_into_the_text() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call(TEXT)]}
    assert inline_calls([message]) == [
        {
            "role": "assistant",
            "content": '<tool_call>{"name": "f", "arguments": {"city": "Zürich"}}</tool_call>',
        }
    ]


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("system", 'hi\nYou may call these tools:\n[{"type": "function"}]'),
        ("user", 'You may call these tools:\n[{"type": "function"}]\n\nhi'),
    ],
)
def test_tools_can_be_written_into_the_first_message(role: str, expected: str) -> None:
    (first,) = inline_tools([{"role": role, "content": "hi"}], [{"type": "function"}])
    assert first == {"role": role, "content": expected}


@pytest.mark.parametrize("calls", [5, "x", {"a": 1}, [5], [None], ["x"]])
def test_calls_that_are_no_objects_are_refused_with_their_place(calls: object) -> None:
    with pytest.raises(RequestError) as caught:
        normalise_messages(
            [{"role": "user", "content": ""}, {"role": "assistant", "tool_calls": calls}], MessageForm()
        )
    assert caught.value.field == "messages[1].tool_calls"


def test_a_developer_is_the_system_of_a_template_that_knows_none() -> None:
    message = {"role": "developer", "content": "Be brief."}
    assert normalised(message, MessageForm())["role"] == "system"
    assert normalised(message, MessageForm(developer=True))["role"] == "developer"
