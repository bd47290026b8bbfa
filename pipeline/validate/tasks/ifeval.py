"""IFEval: instructions that a program can check (Zhou et al. 2023).

What needs a language model or a tokenizer of sentences to check is not asked:
the answer's language. Sentences and capital words are told by punctuation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gristmill.pipeline.validate.tasks.model import Answer, Prompt, TaskModel
from gristmill.pipeline.validate.tasks.task import Measured, Row, Task
from gristmill.runtime.errors import PromptError

__all__ = ["IFEVAL", "follows"]

Arguments = Mapping[str, Any]

_MAX_TOKENS = 1024
_NOT_CHECKED = "language:response_language"
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def follows(instruction: str, arguments: Arguments, answer: str) -> bool:
    """Whether an answer, not blank, keeps an instruction of `_CHECKS`, with its arguments."""
    return bool(answer.strip()) and _CHECKS[instruction](answer, arguments)


def _related(relation: str, count: int, limit: int) -> bool:
    return count < limit if relation == "less than" else count >= limit


def _found(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text, re.IGNORECASE))


def _parts(pattern: str, text: str) -> list[str] | None:
    """Parts between separators, blank ones at the ends left out; None if there is a blank one between."""
    parts = [part.strip() for part in re.split(pattern, text)]
    parts = parts[not parts[0] : len(parts) - (not parts[-1])]
    return parts if all(parts) else None


def _is_json(text: str) -> bool:
    bare = re.sub(r"^```(?:json)?|```$", "", text.strip(), flags=re.IGNORECASE).strip()
    try:
        json.loads(bare)
    except (ValueError, RecursionError):
        return False
    return True


def _postscript(text: str, arguments: Arguments) -> bool:
    marker = arguments["postscript_marker"]
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return _found(known.get(marker, re.escape(marker)), text) > 0


def _first_word(text: str, arguments: Arguments) -> bool:
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    nth = arguments["nth_paragraph"]
    if len(paragraphs) != arguments["num_paragraphs"] or nth > len(paragraphs):
        return False
    word = re.match(r"['\"]*([\w-]*)", paragraphs[nth - 1].split()[0])
    return word is not None and word[1].lower() == arguments["first_word"].lower()


def _two_responses(text: str, _: Arguments) -> bool:
    parts = _parts(r"\*{6}", text)
    return parts is not None and len(parts) == 2 and parts[0] != parts[1]


def _highlights(text: str, arguments: Arguments) -> bool:
    marked = [*re.findall(r"\*[^\n*]*\*", text), *re.findall(r"\*\*[^\n*]*\*\*", text)]
    return sum(bool(part.strip("*").strip()) for part in marked) >= int(arguments["num_highlights"])


def _sections(text: str, arguments: Arguments) -> bool:
    pieces = re.split(rf"\s?{re.escape(arguments['section_spliter'])}\s?\d+\s?", text)
    return len(pieces) - 1 >= int(arguments["num_sections"])


_CHECKS: Mapping[str, Callable[[str, Arguments], bool]] = MappingProxyType(
    {
        "change_case:capital_word_frequency": lambda text, a: _related(
            a["capital_relation"],
            sum(word.isupper() for word in re.findall(r"[\w'’-]+", text)),
            a["capital_frequency"],
        ),
        "change_case:english_capital": lambda text, _: text.isupper(),
        "change_case:english_lowercase": lambda text, _: text.islower(),
        "combination:repeat_prompt": lambda text, a: (
            text.strip().lower().startswith(a["prompt_to_repeat"].strip().lower())
        ),
        "combination:two_responses": _two_responses,
        "detectable_content:number_placeholders": lambda text, a: (
            _found(r"\[.*?\]", text) >= a["num_placeholders"]
        ),
        "detectable_content:postscript": _postscript,
        "detectable_format:constrained_response": lambda text, _: any(each in text for each in _ANSWERS),
        "detectable_format:json_format": lambda text, _: _is_json(text),
        "detectable_format:multiple_sections": _sections,
        "detectable_format:number_bullet_lists": lambda text, a: (
            len(re.findall(r"^\s*(?:\*[^*]|-).*$", text, re.MULTILINE)) == a["num_bullets"]
        ),
        "detectable_format:number_highlighted_sections": _highlights,
        "detectable_format:title": lambda text, _: any(
            title.strip("<> ") for title in re.findall(r"<<[^\n]+>>", text)
        ),
        "keywords:existence": lambda text, a: all(_found(word, text) for word in a["keywords"]),
        "keywords:forbidden_words": lambda text, a: (
            not any(_found(rf"\b{word}\b", text) for word in a["forbidden_words"])
        ),
        "keywords:frequency": lambda text, a: _related(
            a["relation"], _found(a["keyword"], text), a["frequency"]
        ),
        "keywords:letter_frequency": lambda text, a: _related(
            a["let_relation"], text.lower().count(a["letter"].lower()), a["let_frequency"]
        ),
        "length_constraints:nth_paragraph_first_word": _first_word,
        "length_constraints:number_paragraphs": lambda text, a: (
            len(_parts(r"\s?\*\*\*\s?", text) or ()) == a["num_paragraphs"]
        ),
        "length_constraints:number_sentences": lambda text, a: _related(
            a["relation"], len(re.findall(r"[^.!?]*\w[^.!?]*(?:[.!?]+|$)", text)), a["num_sentences"]
        ),
        "length_constraints:number_words": lambda text, a: _related(
            a["relation"], _found(r"\w+", text), a["num_words"]
        ),
        "punctuation:no_comma": lambda text, _: "," not in text,
        "startend:end_checker": lambda text, a: (
            text.strip().strip('"').lower().endswith(a["end_phrase"].strip().lower())
        ),
        "startend:quotation": lambda text, _: re.fullmatch(r'".*"', text.strip(), re.DOTALL) is not None,
    }
)


def _measure(model: TaskModel, rows: Sequence[Row]) -> list[Measured]:
    """`prompt_strict`: all instructions are kept. `instruction_strict`: the share that is."""
    prompts = [
        Prompt(messages=({"role": "user", "content": row["prompt"]},), max_tokens=_MAX_TOKENS) for row in rows
    ]
    return [_judge(row, answer) for row, answer in zip(rows, model.generate(prompts), strict=True)]


def _judge(row: Row, answer: Answer) -> Measured:
    kept = [
        follows(instruction, arguments, answer.text)
        for instruction, arguments in zip(row["instruction_id_list"], row["kwargs"], strict=True)
    ]
    values = {"prompt_strict": float(all(kept)), "instruction_strict": sum(kept) / len(kept)}
    return Measured(values, answer.text, answer.truncated)


def _checkable(path: Path, rows: Sequence[Row]) -> list[Row]:
    """The rows whose every instruction can be checked. Raises PromptError for one that is not known."""
    for row in rows:
        unknown = set(row["instruction_id_list"]) - {*_CHECKS, _NOT_CHECKED}
        if unknown or not row["instruction_id_list"]:
            found = ", ".join(sorted(unknown)) or "no instruction"
            raise PromptError(f"item {row['id']} of {path.name}", found=found, expected="known instructions")
    checkable = [row for row in rows if _NOT_CHECKED not in row["instruction_id_list"]]
    if not checkable:
        raise PromptError(f"{path.name}", found=f"only items of {_NOT_CHECKED}", expected="others")
    return checkable


IFEVAL = Task(
    "ifeval",
    "prompt_strict",
    ("ifeval.jsonl", "ifeval.jsonl.gz"),
    {"prompt": str, "instruction_id_list": list, "kwargs": list},
    _measure,
    _checkable,
)
