"""Windows of plain text are the text's own tokens, and know their paragraphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.calibration import text_windows as module
from gristmill.calibration.records import paragraph_hash
from gristmill.calibration.text_windows import text_windows
from gristmill.runtime.tokenizer import Tokenizer, load_tokenizer

PARAGRAPHS = [
    f"Paragraph number {number} tells a story of its own, long enough to count." for number in range(6)
]
TEXT = "\n\n".join(PARAGRAPHS)


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


@pytest.mark.parametrize("max_tokens", [2, 7, 1_000])
def test_windows_joined_are_the_tokens_of_the_text(tokenizer: Tokenizer, max_tokens: int) -> None:
    windows = list(text_windows(TEXT, tokenizer, max_tokens))
    joined = [token for window in windows for token in window.ids]
    assert joined == tokenizer.encode(TEXT, add_special_tokens=True)
    assert all(len(window.ids) == max_tokens for window in windows[:-1])


def test_a_window_names_exactly_the_paragraphs_it_touches(tokenizer: Tokenizer) -> None:
    at = 0
    for window in text_windows(TEXT, tokenizer, 10):
        end = at + len(tokenizer.decode(window.ids, skip_special_tokens=True))
        touched = set()
        for paragraph in PARAGRAPHS:
            start = TEXT.index(paragraph)
            if at < start + len(paragraph) and end > start:
                touched.add(paragraph_hash(paragraph))
        assert window.records == touched
        at = end


def test_a_long_text_is_encoded_in_blocks_without_loss(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK", 100)
    windows = list(text_windows(TEXT, tokenizer, 16))
    text = "".join(tokenizer.decode(window.ids, skip_special_tokens=True) for window in windows)
    assert text == TEXT
    assert {name for window in windows for name in window.records} == {paragraph_hash(p) for p in PARAGRAPHS}
