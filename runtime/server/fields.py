"""Which request fields are served, accepted without effect, or refused: the compatibility table.

A field that would change the answer and is not supported is refused, never
ignored. A name that neither OpenAI nor vLLM knows is refused too: it is
likely misspelt.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from gristmill.runtime.errors import RequestError
from gristmill.runtime.server.field_faults import json_text

__all__ = [
    "NO_EFFECT",
    "UNSUPPORTED_CHAT",
    "UNSUPPORTED_COMPLETION",
    "UNSUPPORTED_TEMPLATE",
    "supported_fields",
    "unsupported_chat",
]

NO_EFFECT = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Accepted by both endpoints; they change nothing about an answer."""

# Each with the values that ask for what is done anyway; null does so always.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "guided_choice": (),
        "guided_decoding_backend": (),
        "guided_grammar": (),
        "guided_json": (),
        "guided_regex": (),
        "guided_whitespace_pattern": (),
        "kv_transfer_params": (),
        "length_penalty": (1.0,),
        "logits_processors": ([],),
        "prompt_embeds": (),
        "response_format": ({"type": "text"},),
        "spaces_between_special_tokens": (True,),
        "structural_tag": (),
        "structured_outputs": (),
        "use_beam_search": (False,),
        "vllm_xargs": (),
    }
)

UNSUPPORTED_COMPLETION: Mapping[str, tuple[Any, ...]] = MappingProxyType({**_UNSUPPORTED, "suffix": ("",)})
"""Fields of /v1/completions that get 400 unless they hold one of the values listed."""

UNSUPPORTED_TEMPLATE: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {"chat_template": (), "continue_final_message": (False,), "mm_processor_kwargs": ()}
)
"""Fields of all that renders a chat that get 400 unless they hold one of the values listed."""

UNSUPPORTED_CHAT: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        **_UNSUPPORTED,
        **UNSUPPORTED_TEMPLATE,
        "audio": (),
        "echo": (False,),
        "function_call": (),
        "functions": (),
        "include_reasoning": (True,),
        "modalities": (["text"],),
        "parallel_tool_calls": (True,),
        "prediction": (),
        "reasoning_effort": (),
        "tool_choice": ("none",),
        "verbosity": (),
        "web_search_options": (),
    }
)
"""Fields of /v1/chat/completions that get 400 unless they hold one of the values listed."""


def unsupported_chat(body: Mapping[str, Any]) -> Mapping[str, tuple[Any, ...]]:
    """UNSUPPORTED_CHAT for this body: without tools, `tool_choice: auto` asks for what is done anyway."""
    return UNSUPPORTED_CHAT if body.get("tools") else {**UNSUPPORTED_CHAT, "tool_choice": ("none", "auto")}


def supported_fields(
    body: Mapping[str, Any], supported: Collection[str], unsupported: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """The fields of a request that are served, null ones left out. Raises RequestError naming any other."""
    fields: dict[str, Any] = {}
    for name, value in body.items():
        if name in supported:
            fields[name] = value
        elif name in unsupported:
            _check_neutral(name, value, unsupported[name])
        elif name not in NO_EFFECT:
            raise _unknown(name, {*supported, *unsupported, *NO_EFFECT})
    return {name: value for name, value in fields.items() if value is not None}


def _check_neutral(name: str, value: Any, neutral: tuple[Any, ...]) -> None:
    if value is None or any(type(value) is type(item) and value == item for item in neutral):
        return
    raise RequestError(
        f"{name} is not supported",
        field=name,
        code="unsupported_parameter",
        found=json_text(value),
        hint=f"leave {name} out",
    )


def _unknown(name: str, known: Collection[str]) -> RequestError:
    close = difflib.get_close_matches(name[:80], known, n=1)
    return RequestError(
        f"unknown field {name[:80]!r}",
        field=name[:80],
        code="unknown_parameter",
        hint=f"did you mean {close[0]}?" if close else "remove it",
    )
