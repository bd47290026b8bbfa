"""Prompts of a given number of tokens, for a server whose tokenizer is not at hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gristmill.runtime.loadtest.client import Prompt

__all__ = ["PromptMaker", "Segment", "TokenPrompts", "WordPrompts", "calibrate_words"]

CountTokens = Callable[[str], Coroutine[Any, Any, int]]

_WORDS = """\
the of and to in is was for that on with as by at from his it an were are which this also be had or has
first their its new after but who not they have her she two been other when there all during into school
time may years more most only over city some world would where later up such used many can state about
national out known university united then made under between well area three each part him these through
being before number south second high team company until found game called series four several north group
public system since former family same name any around early now life against home people released house
local back long own music following including government church town season district show war station player
large general film league major book club road river white black small water power force set line island
party field order place day work left right end million version best law land sea sun king queen light night
morning
"""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt: equal keys are equal text, as far as both reach."""

    key: str
    tokens: int


class PromptMaker(Protocol):
    """Writes prompts."""

    def make(self, segments: Sequence[Segment]) -> Prompt:
        """One prompt of all segments."""


@dataclass(frozen=True, slots=True)
class TokenPrompts:
    """Token ids, for servers that take them. All of these are in any vocabulary of text."""

    first: int = 100
    end: int = 1000

    def make(self, segments: Sequence[Segment]) -> list[int]:
        """Random ids."""
        ids = range(self.first, self.end)
        return [
            token_id
            for segment in segments
            for token_id in random.Random(segment.key).choices(ids, k=segment.tokens)
        ]


@dataclass(frozen=True, slots=True)
class WordPrompts:
    """Random words of `tokens_per_word` tokens; `added` are those that the server puts around a prompt."""

    words: tuple[str, ...]
    tokens_per_word: float
    added: int

    def make(self, segments: Sequence[Segment]) -> str:
        """Words, one at least; the last segment makes room for what the server adds."""
        most = sum(segment.tokens for segment in segments) - self.added
        written: list[str] = []
        reached = 0
        for segment in segments:
            reached += segment.tokens
            missing = round(min(reached, most) / self.tokens_per_word) - len(written)
            written += random.Random(segment.key).choices(self.words, k=max(0, missing))
        return _text(written or self.words[:1])


def _text(words: Sequence[str]) -> str:
    """A space before the first too: many a word is one token behind a space only."""
    return "".join(f" {word}" for word in words)


async def calibrate_words(count: CountTokens) -> WordPrompts:
    """Words whose tokens are known, by asking the server for the length of a few texts.

    Words of one token each, if there are enough of them; then lengths are exact.
    Otherwise all, at their mean.
    """
    words = tuple(dict.fromkeys(_WORDS.split()))
    middle = len(words) // 2
    whole, *halves = [await count(_text(part)) for part in (words, words[:middle], words[middle:])]
    added = max(0, sum(halves) - whole)
    single = await _single_token_words(words, count, added)
    if len(single) >= len(words) // 4:
        return WordPrompts(single, 1.0, added)
    return WordPrompts(words, (whole - added) / len(words), added)


async def _single_token_words(words: tuple[str, ...], count: CountTokens, added: int) -> tuple[str, ...]:
    """Those of `words` that are one token, by halves: most groups are whole."""
    tokens = await count(_text(words)) - added
    if tokens == len(words):
        return words
    if len(words) == 1 or tokens >= 2 * len(words):
        return ()
    middle = len(words) // 2
    halves = words[:middle], words[middle:]
    return tuple([word for half in halves for word in await _single_token_words(half, count, added)])
