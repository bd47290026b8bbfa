"""The form in which a chat template takes messages, found by rendering small chats."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gristmill.runtime.errors import RequestError

__all__ = ["EMPTY_CONTENT", "EmptyContent", "Message", "MessageForm", "detect_form"]

Message = Mapping[str, Any]
"""A chat message as OpenAI writes it: role, content, and maybe tool_calls, tool_call_id, name."""

EmptyContent = Literal["text", "null", "part"]
EMPTY_CONTENT: Mapping[EmptyContent, object] = {
    "text": "",
    "null": None,
    "part": [{"type": "text", "text": ""}],
}
"""The ways to say that a message has no text."""

_Render = Callable[[Sequence[Message], Sequence[Mapping[str, Any]] | None], str]
_FIRST, _SECOND, _CALLED = "probe first", "probe second", "probe value"
_ARGUMENTS = {"probe_key": _CALLED}
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A tool.",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "A key."}},
            "required": ["probe_key"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class MessageForm:
    """What a template renders without loss.

    text           content as text; False for templates that read only lists of parts
    parts          a user's content as a list of text parts
    tools          the list of tools
    calls          an assistant's `tool_calls`
    call_content   what may stand as content beside calls when there is no text, the best first
    arguments      what a call's arguments may be: an object (dict), its JSON text (str)
    developer      the role developer; the others know it as system
    """

    text: bool = True
    parts: bool = False
    tools: bool = False
    calls: bool = False
    call_content: tuple[EmptyContent, ...] = ("text",)
    arguments: tuple[type, ...] = ()
    developer: bool = False


def detect_form(render: _Render) -> MessageForm:
    """Find a template's form; `render` raises RequestError for what the template refuses."""

    def attempt(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        try:
            return render(messages, tools)
        except RequestError:
            return ""

    plain = attempt([_user(_FIRST)])
    listed = attempt([_user([{"type": "text", "text": _FIRST}, {"type": "text", "text": _SECOND}])])
    takes_parts = _FIRST in listed and _SECOND in listed and _quoted_text(listed) <= _quoted_text(plain)
    with_tools = attempt([_user(_FIRST)], [_TOOL])
    calls = [
        (content, type(arguments))
        for content in EMPTY_CONTENT
        for arguments in (_ARGUMENTS, json.dumps(_ARGUMENTS))
        if _renders_call(attempt(_calling_chat(content, arguments), [_TOOL]), with_tools)
    ]
    return MessageForm(
        text=_FIRST in plain or not takes_parts,
        parts=takes_parts,
        tools="probe_tool" in with_tools,
        calls=bool(calls),
        call_content=tuple(dict.fromkeys(content for content, _ in calls)) or ("text",),
        arguments=tuple(dict.fromkeys(kind for _, kind in calls)),
    )


def _user(content: object) -> Message:
    return {"role": "user", "content": content}


def _calling_chat(content: EmptyContent, arguments: object) -> list[Message]:
    call_id = "probe0001"  # nine letters and digits: Mistral's templates insist
    call = {"id": call_id, "type": "function", "function": {"name": "probe_tool", "arguments": arguments}}
    return [
        _user(_FIRST),
        {"role": "assistant", "content": EMPTY_CONTENT[content], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "name": "probe_tool", "content": _SECOND},
    ]


def _quoted_text(rendered: str) -> int:
    """How often the word text stands in quotes: a list of parts printed as Python or JSON shows it."""
    return len(re.findall(r"(['\"])text\1", rendered))


def _renders_call(rendered: str, without_call: str) -> bool:
    """Whether the call's arguments are there, neither as Python nor escaped, and nothing shows as None."""
    spoilt = ("'probe_key'", '\\"probe_key', "None")
    return _CALLED in rendered and all(rendered.count(sign) <= without_call.count(sign) for sign in spoilt)
