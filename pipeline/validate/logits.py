"""Where logits come from: an executor that serves, or the original model block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import InputError
from gristmill.runtime.executors.base import Executor, SequenceStep

__all__ = ["ExecutorLogits", "LogitsSource", "Sequences"]

Sequences: TypeAlias = Sequence[Sequence[int]]


class LogitsSource(Protocol):
    """A model that gives the logits of every position."""

    def logits(self, sequences: Sequences, rows: int) -> Iterator[NDArray[np.float32]]:
        """Logits [n, vocab] in chunks of at most `rows` positions, sequence after sequence.

        Each sequence starts a new chunk, so that two sources yield chunks of
        the same shapes. A chunk is valid until the next one is asked for.
        """


class ExecutorLogits:
    """Logits of an executor, prefilled in chunks over one block table: exactly what it would serve."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def logits(self, sequences: Sequences, rows: int) -> Iterator[NDArray[np.float32]]:
        """See `LogitsSource`. Raises InputError for a sequence longer than the cache."""
        cache = self._executor.cache
        table = range(cache.num_blocks)
        for sequence in sequences:
            if len(sequence) > cache.num_blocks * cache.block_size:
                raise InputError(
                    "validation window",
                    found=f"{len(sequence)} tokens",
                    expected=f"at most the {cache.num_blocks * cache.block_size} tokens of the KV cache",
                )
            for start in range(0, len(sequence), rows):
                chunk = sequence[start : start + rows]
                blocks = -(-(start + len(chunk)) // cache.block_size)
                yield self._executor.execute([SequenceStep(chunk, start, table[:blocks], logits="all")])
