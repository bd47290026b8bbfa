"""Word problems answered step by step: GSM8K (Cobbe et al. 2021), MGSM in Chinese (Shi et al. 2022)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gristmill.pipeline.validate.tasks.model import Answer, Prompt, TaskModel
from gristmill.pipeline.validate.tasks.rows import beside
from gristmill.pipeline.validate.tasks.task import Measured, Row, Task

__all__ = ["MATH", "last_number"]

_SHOTS = 5
_MAX_TOKENS = 320
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_CALCULATION = re.compile(r"<<.*?>>")
_FEWSHOT = "gsm8k_fewshot.jsonl"
_CHINESE = "问题：{question}\n请一步一步地思考，最后一行写“答案是”和一个数字。\n解答："


def last_number(text: str) -> float | None:
    """The number that a solution ends with: the one behind `####` where there is one."""
    found = _NUMBER.findall(text.rpartition("####")[2]) or _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def _measure(model: TaskModel, rows: Sequence[Row]) -> list[Measured]:
    answers = model.generate([_pose(row) for row in rows])
    return [_judge(row, answer) for row, answer in zip(rows, answers, strict=True)]


def _pose(row: Row) -> Prompt:
    if row["examples"]:
        return Prompt(
            f"{row['examples']}Question: {row['prompt']}\nAnswer:",
            max_tokens=_MAX_TOKENS,
            stop=("Question:",),
        )
    text = _CHINESE.replace("{question}", row["prompt"])
    return Prompt(text, max_tokens=_MAX_TOKENS, stop=("问题：",))


def _judge(row: Row, answer: Answer) -> Measured:
    right = last_number(answer.text) == last_number(row["reference"])
    return Measured({"exact_match": float(right)}, answer.text, answer.truncated)


def _with_examples(path: Path, rows: Sequence[Row]) -> list[Row]:
    """Five worked examples before each question."""
    shown = [
        f"Question: {example['prompt']}\nAnswer: {_CALCULATION.sub('', example['solution'])}\n\n"
        for example in beside(path, _FEWSHOT, {"prompt": str, "solution": str})[:_SHOTS]
    ]
    return [{**row, "examples": "".join(shown)} for row in rows]


def _without_examples(path: Path, rows: Sequence[Row]) -> list[Row]:
    return [{**row, "examples": ""} for row in rows]


_FIELDS = {"prompt": str, "reference": str}

MATH = (
    Task("gsm8k", "exact_match", ("gsm8k.jsonl", "gsm8k.jsonl.gz"), _FIELDS, _measure, _with_examples),
    Task(
        "mgsm_zh", "exact_match", ("mgsm_zh.jsonl", "mgsm_zh.jsonl.gz"), _FIELDS, _measure, _without_examples
    ),
)
