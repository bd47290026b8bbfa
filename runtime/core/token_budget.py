"""How many prompt tokens a step reads, and how prompts share them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import groupby

from gristmill.runtime.core.request import Request

__all__ = ["LEAST_TOKENS", "largest_budget", "num_readers", "share_tokens"]

LEAST_TOKENS = 16
_MOST_READERS = 4


def largest_budget(least: int, most: int, fits: Callable[[int], bool]) -> int:
    """The most tokens from `least` to `most` for which `fits` holds, which holds for few and not for many."""
    beyond = range(least + 1, most + 1)
    return least + bisect_left(beyond, True, key=lambda tokens: not fits(tokens))


def num_readers(wants: Sequence[int], tokens: int) -> int:
    """How many of the prompts that want so many tokens, in order, are read in one step of `tokens`.

    A few at once, so that a short prompt need not wait for a long one and the
    pieces do not become tiny; more if those few leave tokens over.
    """
    few = min(_MOST_READERS, max(1, tokens // LEAST_TOKENS))
    wanted = 0
    for count, want in enumerate(wants):
        if count >= few and wanted >= tokens:
            return count
        wanted += want
    return len(wants) if tokens else 0


def share_tokens(readers: Sequence[Request], wants: Sequence[int], tokens: int) -> list[int]:
    """Each reader's tokens of a step, in order: at least one, then equal shares of the most urgent first.

    A share is at least `LEAST_TOKENS` while there are any. What a short prompt
    leaves over is shared by the others, a remainder goes to the first. There
    are at least as many `tokens` as readers.
    """
    assert len(readers) <= tokens or not readers
    shares = [1] * len(readers)
    left = tokens - len(readers)
    for _, group in groupby(range(len(readers)), key=lambda index: readers[index].priority):
        left = _share_equally(list(group), wants, shares, left)
    return shares


def _share_equally(group: list[int], wants: Sequence[int], shares: list[int], left: int) -> int:
    """Add to `shares` of one priority; returns what is left when all have what they want."""
    by_want = sorted(group, key=lambda index: wants[index])
    for done, index in enumerate(by_want):
        share = max(LEAST_TOKENS, left // (len(by_want) - done))
        more = min(wants[index] - shares[index], left, share)
        shares[index] += more
        left -= more
    for index in group:
        more = min(wants[index] - shares[index], left)
        shares[index] += more
        left -= more
    return left
