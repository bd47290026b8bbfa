"""Sequences of tokens as batches: equal lengths together, the rest padded on the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gristmill.runtime.errors import PromptError

__all__ = ["Batch", "make_batches"]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Some of the sequences, `first` the position of the first among all.

    tokens  int64 [B, T]
    real    bool [B, T], false on padding; None if there is none

    Padding stands on the right, so causal attention never lets a real token see it.
    """

    first: int
    tokens: torch.Tensor
    real: torch.Tensor | None

    def rows(self, values: torch.Tensor) -> torch.Tensor:
        """The rows [tokens, K] of `values` [B, T, K] that belong to real tokens."""
        return values.flatten(0, 1) if self.real is None else values[self.real]

    def every(self, stride: int) -> torch.Tensor:
        """Which of the sequences (int64 indices) have a position that `stride` divides."""
        positions = torch.arange(self.first, self.first + len(self.tokens))
        return (positions % stride == 0).nonzero().flatten()

    def take(self, chosen: torch.Tensor) -> Batch:
        """The batch of the `chosen` sequences alone."""
        return Batch(self.first, self.tokens[chosen], None if self.real is None else self.real[chosen])


def make_batches(sequences: Sequence[Sequence[int]], vocab_size: int, batch_tokens: int) -> tuple[Batch, ...]:
    """Batches of at most `batch_tokens` tokens, padding included, or of one sequence.

    Sequences are sorted, so the order they came in does not matter; empty ones
    are left out. Raises PromptError if nothing is left or a token is not in the
    vocabulary.
    """
    ordered = sorted((tuple(sequence) for sequence in sequences if sequence), key=lambda s: (len(s), s))
    if not ordered:
        raise PromptError("calibration set", found="no tokens", expected="at least one sequence of tokens")
    for token in (min(map(min, ordered)), max(map(max, ordered))):
        if not 0 <= token < vocab_size:
            raise PromptError(
                "calibration token",
                found=token,
                expected=f"0 to {vocab_size - 1}",
                hint="the tokens were made with another model's tokenizer",
            )
    batches: list[Batch] = []
    start = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or (end + 1 - start) * len(ordered[end]) > batch_tokens:
            batches.append(_pad(start, ordered[start:end]))
            start = end
    return tuple(batches)


def _pad(first: int, sequences: Sequence[Sequence[int]]) -> Batch:
    longest = len(sequences[-1])
    tokens = torch.zeros(len(sequences), longest, dtype=torch.int64)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    padded = int(lengths.min()) < longest
    return Batch(first, tokens, torch.arange(longest) < lengths[:, None] if padded else None)
