"""Passages of tokens as text that a person reads: where the two models part, and what each would say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gristmill.pipeline.validate.worst import Passage
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["Excerpt", "Piece", "excerpt"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text, mostly one token; several where a character needs them.

    `kl` is the largest of its tokens, None for context. `base` and `quantized` are what the models
    found most likely instead, where they differ.
    """

    text: str
    kl: float | None
    base: str | None = None
    quantized: str | None = None


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A passage. `window` counts from 0; `kl_mean` is in nats a token."""

    data: str
    window: int
    kl_mean: float
    pieces: tuple[Piece, ...]

    @property
    def partings(self) -> tuple[tuple[str, Piece], ...]:
        """Each piece at which the models differ, the largest KL first, with the text before it."""
        found = [
            ("".join(piece.text for piece in self.pieces[:index]), piece)
            for index, piece in enumerate(self.pieces)
            if piece.base is not None
        ]
        return tuple(sorted(found, key=lambda parting: -(parting[1].kl or 0.0)))


def excerpt(passage: Passage, tokenizer: Tokenizer) -> Excerpt:
    """The text of a passage."""
    return Excerpt(passage.data, passage.window, passage.kl_mean, tuple(_pieces(passage, tokenizer)))


def _pieces(passage: Passage, tokenizer: Tokenizer) -> Iterator[Piece]:
    context = len(passage.tokens) - len(passage.kl)
    yield Piece(_text(passage.tokens[:context], tokenizer), None)
    data, first = b"", 0
    for index, token in enumerate(passage.tokens[context:]):
        data += tokenizer.token_bytes(token)
        if index + 1 < len(passage.kl) and _is_open(data):
            continue
        yield _piece(data.decode(errors="replace"), passage, range(first, index + 1), tokenizer)
        data, first = b"", index + 1


def _piece(text: str, passage: Passage, places: range, tokenizer: Tokenizer) -> Piece:
    at = max(places, key=lambda place: passage.kl[place])
    kl, base, quantized = passage.kl[at], passage.base_top[at], passage.top[at]
    if base == quantized:
        return Piece(text, kl)
    return Piece(text, kl, _text([base], tokenizer), _text([quantized], tokenizer))


def _text(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    return b"".join(map(tokenizer.token_bytes, tokens)).decode(errors="replace")


def _is_open(data: bytes) -> bool:
    """Whether the bytes end within a character."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False
