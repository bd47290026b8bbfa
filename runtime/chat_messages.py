"""Chat messages in OpenAI form, brought into the form that a chat template takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.runtime.chat_form import EMPTY_CONTENT, EmptyContent, Message, MessageForm
from gristmill.runtime.errors import RequestError

__all__ = ["inline_calls", "inline_tools", "message_text", "normalise_messages"]


def normalise_messages(messages: Sequence[Message], form: MessageForm) -> list[dict[str, Any]]:
    """The same chat in the form that a template takes; what it takes already stays as it is.

    Text parts are joined, missing content becomes "", a call's arguments become
    the object or the JSON text that the template reads, and a developer's message
    is the system's where the template knows no developer. Raises RequestError for
    content that is not text and for arguments that are not JSON.
    """
    return [_normalise(message, form, index) for index, message in enumerate(messages)]


def _normalise(message: Message, form: MessageForm, index: int) -> dict[str, Any]:
    normal = dict(message)
    if message.get("role") == "developer" and not form.developer:
        normal["role"] = "system"
    calls = _tool_calls(message, index)
    text = message_text(message, index)
    if not text and calls and form.calls:
        normal["content"] = _empty_content(message, form)
    elif not form.text:
        normal["content"] = [{"type": "text", "text": text}] if text else []
    elif not (form.parts and message.get("role") == "user" and isinstance(message.get("content"), list)):
        normal["content"] = text
    if calls:
        normal["tool_calls"] = [_normalise_call(call, form, index) for call in calls]
    return normal


def _tool_calls(message: Message, index: int) -> Sequence[Mapping[str, Any]]:
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
        field = f"messages[{index}].tool_calls"
        raise RequestError(f"{field} is not a list of objects", field=field, found=f"{calls!r:.80}")
    return calls


def _empty_content(message: Message, form: MessageForm) -> object:
    given: EmptyContent = "null" if message.get("content") is None else "text"
    return EMPTY_CONTENT[given if given in form.call_content else form.call_content[0]]


def message_text(message: Message, index: int = 0) -> str:
    """The text of a message, its text parts joined without anything between.

    `index` is the message's place in the chat, for the RequestError that other content raises.
    """
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    field = f"messages[{index}].content"
    if not isinstance(content, list):
        raise RequestError(
            f"{field} is neither text nor a list of parts", field=field, found=type(content).__name__
        )
    texts: list[str] = []
    for part in content:
        if not (
            isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        ):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise RequestError(
                f"{field} has a part that is not text", field=field, code="unsupported_content", found=kind
            )
        texts.append(part["text"])
    return "".join(texts)


def _normalise_call(call: Mapping[str, Any], form: MessageForm, index: int) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    arguments = function.get("arguments")
    if isinstance(arguments, str) and form.arguments == (dict,):
        arguments = _parse_arguments(arguments, index)
    elif isinstance(arguments, Mapping) and form.arguments == (str,):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _parse_arguments(text: str, index: int) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        field = f"messages[{index}].tool_calls"
        raise RequestError(
            f"{field} has arguments that are not a JSON object", field=field, found=repr(text[:80])
        )
    return value


def inline_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The chat with its tools as JSON in the first message, for templates that don't render tools.

    They follow a system message's text and stand before a user's. Raises RequestError.
    """
    listing = "You may call these tools:\n" + json.dumps(list(tools), ensure_ascii=False)
    head, *rest = (dict(message) for message in messages)
    text = message_text(head)
    head["content"] = f"{text}\n{listing}" if head.get("role") == "system" else f"{listing}\n\n{text}"
    return [head, *rest]


def inline_calls(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The chat with calls as `<tool_call>JSON</tool_call>` in the text, for templates that don't render them.

    Raises RequestError.
    """
    return [_inline_calls(message, index) for index, message in enumerate(messages)]


def _inline_calls(message: Message, index: int) -> dict[str, Any]:
    inlined = {key: value for key, value in message.items() if key != "tool_calls"}
    calls = message.get("tool_calls") or ()
    if calls:
        inlined["content"] = message_text(message, index)
    for call in calls:
        function = dict(call["function"])
        if isinstance(function.get("arguments"), str):
            function["arguments"] = _parse_arguments(function["arguments"], index)
        inlined["content"] += f"<tool_call>{json.dumps(function, ensure_ascii=False)}</tool_call>"
    return inlined
