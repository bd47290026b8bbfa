"""What a task asks of a model, whatever runs it: an engine, a checkpoint or a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Answer", "Continuation", "Message", "Prompt", "Score", "TaskModel"]

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Continuation:
    """A text to be scored behind its context, which is not empty."""

    context: str
    text: str


@dataclass(frozen=True, slots=True)
class Score:
    """The log probability of a continuation in nats, summed over its tokens.

    `greedy` says whether each token is the most likely one, `truncated` whether
    the context lost its beginning to fit into the model's.
    """

    logprob: float
    greedy: bool
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to be continued greedily, or a chat to be answered: the one that is not empty.

    An answer ends before the first of `stop`.
    """

    text: str = ""
    messages: tuple[Message, ...] = ()
    max_tokens: int = 256
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model wrote; `truncated` as in `Score`."""

    text: str
    truncated: bool = False


class TaskModel(Protocol):
    """A model under test. Both methods answer in the order of what is asked."""

    @property
    def identity(self) -> Mapping[str, Any] | None:
        """JSON values that decide every answer, None where they can't be known: a server may change."""

    def score(self, continuations: Sequence[Continuation]) -> list[Score]:
        """How likely each continuation is. Raises UnsupportedError where log probabilities can't be had."""

    def generate(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """The greedy answer to each prompt."""

    def close(self) -> None:
        """Free what it holds."""
