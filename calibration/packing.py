"""Lay pieces of text out in sequences of one length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

__all__ = ["Piece", "pack", "trim"]


@dataclass(frozen=True, slots=True)
class Piece:
    """The tokens of one prompt, at most max_tokens of them.

    `length` counts the prompt's tokens as it stood in the file, `cut` says that
    it was longer than max_tokens; `records` names what the piece was made from
    (one conversation, or the paragraphs of a stretch of text).
    """

    ids: tuple[int, ...]
    length: int
    cut: bool
    records: frozenset[str]


def trim(pieces: Sequence[Piece], tokens: int) -> list[Piece]:
    """The first `tokens` tokens of the pieces; the last one is cut where they end."""
    kept: list[Piece] = []
    for piece in pieces:
        if tokens <= 0:
            break
        kept.append(replace(piece, ids=piece.ids[:tokens]))
        tokens -= len(piece.ids)
    return kept


def pack(pieces: Iterable[Piece], max_tokens: int) -> list[tuple[int, ...]]:
    """Join all pieces and cut them into sequences of exactly `max_tokens`; what is left over is dropped."""
    stream = [token for piece in pieces for token in piece.ids]
    whole = len(stream) // max_tokens * max_tokens
    return [tuple(stream[start : start + max_tokens]) for start in range(0, whole, max_tokens)]
