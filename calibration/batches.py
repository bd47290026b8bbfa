"""Sequences of tokens as batches: equal lengths together, the rest padded on the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gristmill.runtime.errors import PromptError

__all__ = ["BATCH_TOKENS", "Batch", "make_batches", "sampling_interval"]

BATCH_TOKENS = 2048
"""Tokens that go through a block at once, padding included, unless one sequence has more."""

_SAMPLE_TOKENS = 8192
_LARGEST_INTERVAL = 4


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Some of the sequences, all of the sample or none.

    tokens   int64 [B, T]
    real     bool [B, T], false on padding; None if there is none
    sampled  whether what only needs a part of the sequences looks at these

    Padding stands on the right, so causal attention never lets a real token see it.
    """

    tokens: torch.Tensor
    real: torch.Tensor | None
    sampled: bool

    @property
    def num_tokens(self) -> int:
        """Real tokens."""
        return self.tokens.numel() if self.real is None else int(self.real.sum())

    def rows(self, values: torch.Tensor) -> torch.Tensor:
        """The rows [tokens, K] of `values` [B, T, K] that belong to real tokens."""
        return values.flatten(0, 1) if self.real is None else values[self.real]


def make_batches(
    sequences: Sequence[Sequence[int]], vocab_size: int, batch_tokens: int, sample_every: int
) -> tuple[Batch, ...]:
    """Batches of at most `batch_tokens` tokens, padding included, or of one sequence.

    Sequences are sorted, so the order they came in does not matter; empty ones
    are left out; every `sample_every`-th is in the sample. Raises PromptError if
    nothing is left or a token is not in the vocabulary.
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
    sampled = ordered[::sample_every]
    others = [sequence for position, sequence in enumerate(ordered) if position % sample_every]
    return (*_split(sampled, batch_tokens, True), *_split(others, batch_tokens, False))


def sampling_interval(tokens: int) -> int:
    """How far apart sampled sequences stand: at most 4, closer if the sample would be under 8192 tokens."""
    return min(max(tokens // _SAMPLE_TOKENS, 1), _LARGEST_INTERVAL)


def _split(ordered: Sequence[Sequence[int]], batch_tokens: int, sampled: bool) -> Iterator[Batch]:
    start = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or (end + 1 - start) * len(ordered[end]) > batch_tokens:
            yield _pad(ordered[start:end], sampled)
            start = end


def _pad(sequences: Sequence[Sequence[int]], sampled: bool) -> Batch:
    longest = len(sequences[-1])
    tokens = torch.zeros(len(sequences), longest, dtype=torch.int64)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    padded = int(lengths.min()) < longest
    return Batch(tokens, torch.arange(longest) < lengths[:, None] if padded else None, sampled)
