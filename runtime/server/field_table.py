"""The compatibility table as Markdown, for the README beside this file: `python -m` prints it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from gristmill.runtime.server.fields import NO_EFFECT, UNSUPPORTED_CHAT, UNSUPPORTED_COMPLETION
from gristmill.runtime.server.protocol import ChatRequest, CompletionRequest

__all__ = ["field_table"]

_Kind = type[BaseModel]


def field_table() -> str:
    """All fields of both endpoints: served, accepted without effect, refused."""
    return "\n".join(
        [
            *_served(CompletionRequest, ChatRequest),
            "",
            *_without_effect(NO_EFFECT),
            "",
            *_refused(UNSUPPORTED_COMPLETION, UNSUPPORTED_CHAT),
        ]
    )


def _served(completion: _Kind, chat: _Kind) -> list[str]:
    fields = {**completion.model_fields, **chat.model_fields}
    rows = [
        f"| `{name}` | {_mark(name in completion.model_fields)} | {_mark(name in chat.model_fields)} "
        f"| {field.description} |"
        for name, field in sorted(fields.items())
    ]
    return ["| served | completions | chat | |", "|---|---|---|---|", *rows]


def _mark(present: bool) -> str:
    return "yes" if present else ""


def _without_effect(names: Iterable[str]) -> list[str]:
    return ["Accepted without effect: " + ", ".join(f"`{name}`" for name in sorted(names)) + "."]


def _refused(completion: Mapping[str, tuple[Any, ...]], chat: Mapping[str, tuple[Any, ...]]) -> list[str]:
    rows = [
        f"| `{name}` | {_answer(name, completion)} | {_answer(name, chat)} |"
        for name in sorted({*completion, *chat})
    ]
    return ["| refused | completions | chat |", "|---|---|---|", *rows]


def _answer(name: str, refused: Mapping[str, tuple[Any, ...]]) -> str:
    if name not in refused:
        return "served" if name in _SERVED else "unknown, 400"
    neutral = " or ".join(f"`{json.dumps(value)}`" for value in refused[name])
    return f"400 unless {neutral}" if neutral else "400"


_SERVED = frozenset({*CompletionRequest.model_fields, *ChatRequest.model_fields})


if __name__ == "__main__":
    print(field_table())
