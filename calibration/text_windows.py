"""Cut plain text into windows of tokens, and know which paragraphs lie in each."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from gristmill.calibration.packing import Piece
from gristmill.calibration.records import paragraph_hash
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["text_windows"]

_BLOCK = 1 << 20
"""Characters encoded at once, so that a large file needs no list of all its offsets."""


def text_windows(text: str, tokenizer: Tokenizer, max_tokens: int) -> Iterator[Piece]:
    """The text as consecutive windows of `max_tokens`, the last of each mebibyte maybe shorter.

    Its `records` are the hashes of the paragraphs, whole or not, in a window.
    """
    for number, block in enumerate(_blocks(text)):
        ids, offsets = tokenizer.encode_with_offsets(block, add_special_tokens=number == 0)
        starts, ends, hashes = _paragraphs(block)
        for first in range(0, len(ids), max_tokens):
            window = tuple(ids[first : first + max_tokens])
            begin, end = offsets[first][0], offsets[first + len(window) - 1][1]
            inside = hashes[bisect_right(ends, begin) : bisect_left(starts, end)]
            yield Piece(window, len(window), False, frozenset(name for name in inside if name is not None))


def _blocks(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = start + _BLOCK
        if end < len(text):
            gap = text.rfind("\n\n", start, end)
            end = gap + 2 if gap > start else end
        yield text[start:end]
        start = end


def _paragraphs(block: str) -> tuple[list[int], list[int], list[str | None]]:
    """Starts, ends and hashes of the parts between blank lines."""
    gaps = [match.span() for match in re.finditer(r"\n\s*\n", block)]
    starts = [0, *(end for _, end in gaps)]
    ends = [*(start for start, _ in gaps), len(block)]
    return starts, ends, [paragraph_hash(block[start:end]) for start, end in zip(starts, ends, strict=True)]
