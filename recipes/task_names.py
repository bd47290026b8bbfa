"""The tasks that a recipe may name; what each one asks and how it counts is the pipeline's."""

from __future__ import annotations

from typing import Literal

__all__ = ["TaskName"]

TaskName = Literal[
    "arc_challenge",
    "arc_easy",
    "gaokao_zh",
    "gsm8k",
    "hellaswag",
    "humaneval",
    "ifeval",
    "lambada",
    "mbpp",
    "mgsm_zh",
    "openbookqa",
    "text2sql",
    "tool_calls",
    "truthfulqa_mc1",
    "winogrande",
    "xcopa_zh",
]
