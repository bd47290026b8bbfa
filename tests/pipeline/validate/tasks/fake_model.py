"""A model whose every answer the test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.pipeline.validate.tasks.model import Answer, Continuation, Prompt, Score

__all__ = ["FakeModel"]


@dataclass
class FakeModel:
    """Scores and answers by function; `asked` counts what was asked of it."""

    logprob: Callable[[Continuation], float] = lambda continuation: 0.0
    answer: Callable[[Prompt], str] = lambda prompt: ""
    identity: Mapping[str, Any] | None = field(default_factory=lambda: {"weights": "fake"})
    asked: int = 0

    def score(self, continuations: Sequence[Continuation]) -> list[Score]:
        self.asked += len(continuations)
        scores = [self.logprob(each) for each in continuations]
        return [Score(logprob, greedy=logprob > -1.0) for logprob in scores]

    def generate(self, prompts: Sequence[Prompt]) -> list[Answer]:
        self.asked += len(prompts)
        return [Answer(self.answer(prompt)) for prompt in prompts]

    def close(self) -> None:
        self.asked = -1
