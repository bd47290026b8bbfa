"""Programs that must pass their tests: HumanEval (Chen et al. 2021), MBPP (Austin et al. 2021)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gristmill.pipeline.validate.tasks.model import Answer, Prompt, TaskModel
from gristmill.pipeline.validate.tasks.sandbox import require_sandbox, run_programs
from gristmill.pipeline.validate.tasks.task import Measured, Row, Task

__all__ = ["CODE", "code_block"]

_MAX_TOKENS = 512
_ENDS_OF_FUNCTION = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def code_block(answer: str) -> str:
    """The first fenced block of an answer, or the answer itself where it has none."""
    found = _BLOCK.search(answer)
    return found[1] if found else answer


def _humaneval(model: TaskModel, rows: Sequence[Row]) -> list[Measured]:
    """The rest of a function behind its signature; sampled once, greedily: pass@1."""
    prompts = [Prompt(row["prompt"], max_tokens=_MAX_TOKENS, stop=_ENDS_OF_FUNCTION) for row in rows]
    answers = model.generate(prompts)
    programs = [
        f"{row['prompt']}{answer.text}\n{row['test']}\ncheck({row['entry_point']})"
        for row, answer in zip(rows, answers, strict=True)
    ]
    return _judge(programs, answers)


def _mbpp(model: TaskModel, rows: Sequence[Row]) -> list[Measured]:
    """A function by its description and its tests."""
    answers = model.generate([_pose(row) for row in rows])
    programs = [
        "\n".join([*row["test_imports"], code_block(answer.text), *row["test_list"]])
        for row, answer in zip(rows, answers, strict=True)
    ]
    return _judge(programs, answers)


def _pose(row: Row) -> Prompt:
    tests = "\n".join(row["test_list"])
    text = (
        f"You are an expert Python programmer, and here is your task: {row['prompt']} "
        f"Your code should pass these tests:\n\n{tests}\n\nAnswer with one block of Python code."
    )
    return Prompt(messages=({"role": "user", "content": text},), max_tokens=_MAX_TOKENS)


def _judge(programs: Sequence[str], answers: Sequence[Answer]) -> list[Measured]:
    outcomes = run_programs(programs)
    return [
        Measured({"pass@1": float(outcome == "passed")}, answer.text, answer.truncated)
        for outcome, answer in zip(outcomes, answers, strict=True)
    ]


CODE = (
    Task(
        "humaneval",
        "pass@1",
        ("humaneval.jsonl", "humaneval.jsonl.gz"),
        {"prompt": str, "entry_point": str, "test": str},
        _humaneval,
        require=require_sandbox,
    ),
    Task(
        "mbpp",
        "pass@1",
        ("mbpp_sanitized.jsonl", "mbpp_sanitized.jsonl.gz", "mbpp.jsonl"),
        {"prompt": str, "test_imports": list, "test_list": list},
        _mbpp,
        require=require_sandbox,
    ),
)
