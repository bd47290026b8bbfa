"""How much of the held-out data was seen in calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import PromptError

__all__ = ["GRAM", "covered_tokens", "refuse_shared_records"]

GRAM = 16
"""Tokens in a row that count as the same text."""

Sequences: TypeAlias = Sequence[Sequence[int]]


def refuse_shared_records(name: str, records: frozenset[str], calibration: frozenset[str]) -> None:
    """Raise PromptError if a record of the held-out set `name` was also used for calibration."""
    if shared := len(records & calibration):
        raise PromptError(
            f"validation data {name}",
            found=f"{shared} of {len(records)} records that calibration has used",
            expected="held-out records only",
            hint="move them out of one of the two files",
        )


def covered_tokens(held_out: Sequences, calibration: Sequences) -> int:
    """Tokens of `held_out` that lie in a run of 16 which also occurs in `calibration`."""
    seen = {gram.tobytes() for sequence in calibration for gram in _grams(sequence)}
    return sum(int(_covered(sequence, seen).sum()) for sequence in held_out)


def _covered(sequence: Sequence[int], seen: set[bytes]) -> NDArray[np.bool_]:
    covered = np.zeros(len(sequence), dtype=bool)
    for start, gram in enumerate(_grams(sequence)):
        if gram.tobytes() in seen:
            covered[start : start + GRAM] = True
    return covered


def _grams(sequence: Sequence[int]) -> Iterator[NDArray[np.int32]]:
    tokens = np.asarray(sequence, dtype=np.int32)
    if len(tokens) >= GRAM:
        yield from np.lib.stride_tricks.sliding_window_view(tokens, GRAM)
