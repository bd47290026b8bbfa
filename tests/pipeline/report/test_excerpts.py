"""Passages become text again, whole characters together, with both models' words where they part."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.pipeline.report.excerpts import excerpt
from gristmill.pipeline.validate.worst import Passage
from gristmill.runtime.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


def passage(tokenizer: Tokenizer, context: str, text: str, **changes: tuple[int, ...]) -> Passage:
    before = tokenizer.encode(context, add_special_tokens=False)
    after = tokenizer.encode(text, add_special_tokens=False)
    predicted = {"base_top": tuple(after), "top": tuple(after)} | changes
    kl = tuple(0.1 * (index + 1) for index in range(len(after)))
    return Passage("a.txt", 3, 0, (*before, *after), kl, predicted["base_top"], predicted["top"])


def test_the_pieces_are_the_text(tokenizer: Tokenizer) -> None:
    found = excerpt(passage(tokenizer, "The mill", " stands by the river"), tokenizer)
    assert "".join(piece.text for piece in found.pieces) == "The mill stands by the river"
    assert found.pieces[0].kl is None
    assert found.partings == ()


def test_a_character_of_several_tokens_is_one_piece(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("\U0001f9ff", add_special_tokens=False)) > 1
    found = excerpt(passage(tokenizer, "a", "\U0001f9ff"), tokenizer)
    context, piece = found.pieces
    assert (context.text, piece.text) == ("a", "\U0001f9ff")
    assert piece.kl == max(passage(tokenizer, "a", "\U0001f9ff").kl)


def test_partings_name_both_words_and_what_stood_before(tokenizer: Tokenizer) -> None:
    (river,) = tokenizer.encode(" river", add_special_tokens=False)
    (sea,) = tokenizer.encode(" sea", add_special_tokens=False)
    found = excerpt(passage(tokenizer, "by the", " river", base_top=(river,), top=(sea,)), tokenizer)
    ((before, piece),) = found.partings
    assert (before, piece.text, piece.base, piece.quantized) == ("by the", " river", " river", " sea")
