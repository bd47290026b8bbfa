"""LAMBADA: the last word of a passage that only its whole tells (Paperno et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.pipeline.validate.tasks.model import Continuation, TaskModel
from gristmill.pipeline.validate.tasks.task import Measured, Row, Task

__all__ = ["LAMBADA"]


def _measure(model: TaskModel, rows: Sequence[Row]) -> list[Measured]:
    """`acc`: greedy decoding gives the word. `loss`: -ln of its probability."""
    scores = model.score([Continuation(row["context"], row["target"]) for row in rows])
    return [
        Measured(
            {"acc": float(score.greedy), "loss": -score.logprob},
            row["target"] if score.greedy else "another word",
            score.truncated,
        )
        for row, score in zip(rows, scores, strict=True)
    ]


LAMBADA = Task(
    "lambada", "acc", ("lambada.jsonl", "lambada.jsonl.gz"), {"context": str, "target": str}, _measure
)
