"""Function calls: the model must call what the reference calls, with accepted arguments (as BFCL judges).

The functions are described in the prompt and the calls are asked for as JSON,
the same for every source of a model: chat templates and servers have forms of
their own, or none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from gristmill.pipeline.validate.tasks.model import Answer, Prompt, TaskModel
from gristmill.pipeline.validate.tasks.task import Measured, Row, Task

__all__ = ["TOOL_CALLS", "accepts", "calls_of"]

_MAX_TOKENS = 320
_INSTRUCTION = (
    "You may call the functions below. Answer only with a JSON list of calls, "
    '[{"name": "function", "arguments": {"parameter": "value"}}], or with [] if none of them fits.\n'
)
Call = tuple[str, Mapping[str, Any]]


def calls_of(answer: str) -> list[Call] | None:
    """The calls of an answer: its first JSON list, or all its objects, fenced or not; None without."""
    text = re.sub(r"</?tool_calls?>|```(?:json)?", "\n", answer)
    decoder, position = json.JSONDecoder(), 0
    found: list[object] = []
    while (start := min((at for sign in "[{" if (at := text.find(sign, position)) >= 0), default=-1)) >= 0:
        try:
            value, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            position = start + 1
            continue
        if isinstance(value, list) and not found:
            return _as_calls(value)
        found.append(value)
    return _as_calls(found) if found else None


def accepts(reference: Sequence[Mapping[str, Any]] | Mapping[str, Any], calls: Sequence[Call]) -> bool:
    """Whether the calls are those of the reference, in any order, each argument with an accepted value.

    BFCL's references are lists of `{function: {argument: [accepted values]}}`, where "" and null accept a
    missing argument; ACEBench's are `{function: {argument: value}}`.
    """
    several = not isinstance(reference, Mapping)
    entries = [reference] if isinstance(reference, Mapping) else reference
    left = list(calls)
    for name, arguments in chain.from_iterable(entry.items() for entry in entries):
        match = next((call for call in left if _matches(call, name, arguments, several=several)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _as_calls(values: Sequence[object]) -> list[Call] | None:
    calls: list[Call] = []
    for value in values:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if not isinstance(arguments, dict):
            return None
        calls.append((value["name"], arguments))
    return calls


def _matches(call: Call, name: str, arguments: Mapping[str, Any], *, several: bool) -> bool:
    if call[0] != name or not call[1].keys() <= arguments.keys():
        return False
    for key, accepted in arguments.items():
        values = accepted if several else [accepted]
        if key not in call[1]:
            if not several or not any(value in ("", None) for value in values):
                return False
        elif not any(_equal(call[1][key], value) for value in values):
            return False
    return True


def _equal(found: object, accepted: object) -> bool:
    if isinstance(found, str) and isinstance(accepted, str):
        return _plain(found) == _plain(accepted)
    if isinstance(found, bool) != isinstance(accepted, bool):
        return False
    if isinstance(found, list) and isinstance(accepted, list):
        return len(found) == len(accepted) and all(map(_equal, found, accepted))
    if isinstance(found, dict) and isinstance(accepted, dict):
        return found.keys() == accepted.keys() and all(
            any(_equal(found[key], value) for value in (options if isinstance(options, list) else [options]))
            or _equal(found[key], options)
            for key, options in accepted.items()
        )
    return found == accepted


def _plain(text: str) -> str:
    """BFCL compares texts without case, spaces and punctuation."""
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')


def _measure(model: TaskModel, rows: Sequence[Row]) -> list[Measured]:
    """`exact`: all calls are right. `parsed`: the answer holds calls, or an empty list of them."""
    answers = model.generate([_pose(row) for row in rows])
    return [_judge(row, answer) for row, answer in zip(rows, answers, strict=True)]


def _pose(row: Row) -> Prompt:
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in row["tools"])
    given = [message for message in row["messages"] if message["role"] == "system"]
    system = "\n\n".join([*(message["content"] for message in given), _INSTRUCTION + functions])
    others = [message for message in row["messages"] if message["role"] != "system"]
    return Prompt(messages=({"role": "system", "content": system}, *others), max_tokens=_MAX_TOKENS)


def _judge(row: Row, answer: Answer) -> Measured:
    calls = calls_of(answer.text)
    right = accepts(row["reference"], calls or []) if calls is not None else not row["reference"]
    values = {"exact": float(right), "parsed": float(calls is not None)}
    return Measured(values, answer.text, answer.truncated)


TOOL_CALLS = Task(
    "tool_calls",
    "exact",
    ("tool_calls.jsonl", "tool_calls.jsonl.gz"),
    {"messages": list, "tools": list, "reference": object},
    _measure,
)
