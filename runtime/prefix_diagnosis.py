"""Why a prompt was not found in the prefix cache, though its text was there a moment ago.

A clock or a random id near the start of a prompt makes all that follows new to
a cache that matches from the first token on. This finds the recent prompt with
the most text in common, wherever that stands, and the token where the two part.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from gristmill.runtime.prefix_causes import Cause, find_difference
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["MIN_PROMPT_TOKENS", "Divergence", "PromptHistory", "is_poor_hit"]

MIN_PROMPT_TOKENS = 128
"""Shorter prompts are neither kept nor diagnosed: there is little to win."""

_POOR_HIT = 0.5
_MOST_TEXT = 0.5  # of the prompt's windows are in the recent one
_WORTH_TELLING = 0.25  # of the prompt could have been cached and was not
_WINDOW = 8
_SKETCH_SIZE = 128
_NONE = np.iinfo(np.uint64).max
_WEIGHTS = np.cumprod(np.full(_WINDOW, 0x9E3779B97F4A7C15, np.uint64))  # powers of the golden ratio's bits
_TOKENS_BEFORE, _TOKENS_AFTER = 24, 48

Sketch = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a prompt left a recent one: `position` is the first token that differs.

    `shared` is the estimated share of the prompt's text that the recent one has.
    `here` and `there` are at most 40 characters of the prompt and of the recent
    one, empty where nothing differs.
    """

    position: int
    cause: Cause
    shared: float
    here: str = ""
    there: str = ""


def is_poor_hit(total: int, cached: int) -> bool:
    """True for a prompt that is worth a diagnosis."""
    return total >= MIN_PROMPT_TOKENS and cached < _POOR_HIT * total


class PromptHistory:
    """The recent long prompts of one model, forgotten oldest first. One thread uses it.

    Prompts are compared only under the same salt, as in the prefix cache, so that
    no tenant learns of another's. `max_bytes` bounds what the prompts take,
    `max_compared` the work of one diagnosis.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_entries: int = 256,
        max_bytes: int = 8 << 20,
        max_compared: int = 32,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._max_compared = max_compared
        self._sketches: OrderedDict[tuple[str, bytes], Sketch] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._sketches)

    def add(self, salt: str, token_ids: Sequence[int]) -> None:
        """Remember a prompt as the latest."""
        if len(token_ids) < MIN_PROMPT_TOKENS:
            return
        tokens = np.asarray(token_ids, np.uint32)
        key = salt, tokens.tobytes()
        if key in self._sketches:
            self._sketches.move_to_end(key)
            return
        self._sketches[key] = _sketch(tokens)
        self.size_bytes += _size(key)
        while self._sketches and not self._within_bounds():
            oldest, _ = self._sketches.popitem(last=False)
            self.size_bytes -= _size(oldest)

    def diagnose(self, salt: str, token_ids: Sequence[int], cached: int) -> Divergence | None:
        """Why no more than `cached` tokens of a prompt were found; None if no recent one explains it."""
        recent = self._recent(salt)
        if not recent or not is_poor_hit(len(token_ids), cached):
            return None
        tokens = np.asarray(token_ids, np.uint32)
        shares = _shared(tokens, np.stack([sketch for _, sketch in recent]))
        best = int(shares.argmax())  # of equals the latest
        shared = float(shares[best])
        if shared < _MOST_TEXT:
            return None
        other = np.frombuffer(recent[best][0], np.uint32)
        position = _common_prefix(tokens, other)
        if position - cached >= _WORTH_TELLING * len(tokens):
            return Divergence(position, "not_cached", shared)
        if shared - position / len(tokens) < _WORTH_TELLING:
            return None
        difference = find_difference(self._around(tokens, position), self._around(other, position))
        return Divergence(position, difference.cause, shared, difference.here, difference.there)

    def _recent(self, salt: str) -> list[tuple[bytes, Sketch]]:
        """The latest prompts under a salt, latest first."""
        found: list[tuple[bytes, Sketch]] = []
        for (owner, tokens), sketch in reversed(self._sketches.items()):
            if owner == salt:
                found.append((tokens, sketch))
            if len(found) == self._max_compared:
                break
        return found

    def _within_bounds(self) -> bool:
        return len(self._sketches) <= self._max_entries and self.size_bytes <= self._max_bytes

    def _around(self, tokens: NDArray[np.uint32], position: int) -> str:
        window = tokens[max(0, position - _TOKENS_BEFORE) : position + _TOKENS_AFTER]
        return self._tokenizer.decode(window.tolist(), skip_special_tokens=False)


def _size(key: tuple[str, bytes]) -> int:
    salt, tokens = key
    return len(salt) + len(tokens) + _SKETCH_SIZE * np.dtype(np.uint64).itemsize


def _sample(tokens: NDArray[np.uint32]) -> tuple[Sketch, NDArray[np.int64]]:
    """The smallest hashes of the prompt's windows, in order, and how often each stands in it.

    Broder, "On the resemblance and containment of documents" (1997): the bottom
    of the hashes is a uniform sample of the distinct windows, whatever their place.
    """
    ordered = np.sort(sliding_window_view(tokens.astype(np.uint64), _WINDOW) @ _WEIGHTS)
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    counts = np.diff(np.append(first, len(ordered)))
    return ordered[first[:_SKETCH_SIZE]], counts[:_SKETCH_SIZE]


def _sketch(tokens: NDArray[np.uint32]) -> Sketch:
    """What a prompt is recognized by: its sample of hashes, filled up with the largest number."""
    hashes, _ = _sample(tokens)
    return np.pad(hashes, (0, _SKETCH_SIZE - len(hashes)), constant_values=_NONE)


def _shared(tokens: NDArray[np.uint32], sketches: NDArray[np.uint64]) -> NDArray[np.float64]:
    """The share of a prompt's windows that stand in each of the others, from what both samples know of."""
    hashes, counts = _sample(tokens)
    places = np.searchsorted(hashes, sketches).clip(max=len(hashes) - 1)
    found = np.where(hashes[places] == sketches, counts[places], 0).sum(axis=1)
    ends = np.searchsorted(hashes, sketches[:, -1], side="right")
    known = np.append(0, np.cumsum(counts))[ends]
    return np.asarray(found / np.maximum(known, 1), np.float64)


def _common_prefix(first: NDArray[np.uint32], second: NDArray[np.uint32]) -> int:
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length
