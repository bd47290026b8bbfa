"""What one step computes, and how much work that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gristmill.runtime.core.request import Request

__all__ = ["Chunk", "LogitRows", "StepPlan", "StepWork", "step_work"]

LogitRows = Literal["none", "last", "all"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One request's share of a step: `length` tokens from position `start`.

    `completes` says that every known token is then computed, so that the last
    row of logits chooses the next one.
    """

    request: Request
    start: int
    length: int
    completes: bool
    logits: LogitRows

    @property
    def num_logit_rows(self) -> int:
        """Rows of logits that it asks for."""
        return self.length if self.logits == "all" else int(self.logits == "last")


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Blocks to copy, as (from, to) and in this order, and the chunks to compute afterwards."""

    chunks: tuple[Chunk, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step costs, counted.

    `prefill_pairs` are the pairs of tokens that attention looks at while
    prompts are read, `context_tokens` those that decodes look at; `rows` are the
    rows of logits that prompts ask for: each decode has one anyway.
    """

    prefill_tokens: int = 0
    prefill_pairs: float = 0.0
    decodes: int = 0
    context_tokens: int = 0
    rows: int = 0

    def plus(self, chunks: Iterable[tuple[int, int, int]]) -> StepWork:
        """This and chunks as (start, length, rows of logits); one of a single token counts as a decode."""
        prefill_tokens, decodes, context_tokens, rows = 0, 0, 0, 0
        prefill_pairs = 0.0
        for start, length, num_rows in chunks:
            if length == 1:
                decodes += 1
                context_tokens += start + 1
            else:
                prefill_tokens += length
                prefill_pairs += length * (start + length / 2)
                rows += num_rows
        return StepWork(
            self.prefill_tokens + prefill_tokens,
            self.prefill_pairs + prefill_pairs,
            self.decodes + decodes,
            self.context_tokens + context_tokens,
            self.rows + rows,
        )


def step_work(chunks: Iterable[Chunk]) -> StepWork:
    """What `chunks` cost together."""
    return StepWork().plus((chunk.start, chunk.length, chunk.num_logit_rows) for chunk in chunks)
