"""Streamed text equals decoded text, for byte-level and SentencePiece vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.runtime.detokenizer import Detokenizer
from gristmill.runtime.tokenizer import Tokenizer, load_tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", *"abcdehnorst", "▁t", "▁th", "▁the", "an", "▁天"]


def sentencepiece_like(**decoder: Any) -> Tokenizer:
    """Llama 2's construction with a tiny vocabulary: byte fallback, a space put before each text."""
    llama_2 = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    value = {
        "version": "1.0",
        "added_tokens": [{"id": index, "content": tokens[index], **special} for index in range(3)],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "decoder": decoder or llama_2,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [["▁", "t"], ["▁t", "h"], ["▁th", "e"], ["a", "n"]],
        },
    }
    return Tokenizer.from_files({"tokenizer.json": json.dumps(value).encode()}, {})


SENTENCEPIECE = sentencepiece_like()


@pytest.fixture(scope="module")
def byte_level(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


def stream(
    tokenizer: Tokenizer, ids: list[int], *, skip: bool = True, sizes: tuple[int, ...] = (1,)
) -> list[str]:
    """The pieces of a stream that arrives `sizes` tokens at a time, the sizes repeated."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    pieces, at, step = [], 0, 0
    while at < len(ids):
        size = sizes[step % len(sizes)]
        pieces.append(detokenizer.feed(ids[at : at + size]))
        at, step = at + size, step + 1
    return [*pieces, detokenizer.flush()]


token_lists = st.lists(st.integers(0, 49_160), max_size=40)
byte_biased = st.lists(st.one_of(st.integers(0, 280), st.integers(195, 210)), max_size=40)
step_sizes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@settings(max_examples=150)
@given(ids=token_lists, skip=st.booleans(), sizes=step_sizes)
def test_any_byte_level_stream_equals_the_library(
    byte_level: Tokenizer, ids: list[int], skip: bool, sizes: tuple[int, ...]
) -> None:
    expected = byte_level.backend.decode(ids, skip_special_tokens=skip)
    assert byte_level.decode(ids, skip_special_tokens=skip) == expected
    assert "".join(stream(byte_level, ids, skip=skip, sizes=sizes)) == expected


@settings(max_examples=150)
@given(ids=byte_biased, skip=st.booleans(), sizes=step_sizes)
def test_any_sentencepiece_stream_equals_decoding_at_once(
    ids: list[int], skip: bool, sizes: tuple[int, ...]
) -> None:
    expected = SENTENCEPIECE.decode(ids, skip_special_tokens=skip)
    assert "".join(stream(SENTENCEPIECE, ids, skip=skip, sizes=sizes)) == expected


@settings(max_examples=150)
@given(text=st.text())
def test_sentencepiece_text_comes_back_as_the_library_decodes_it(text: str) -> None:
    ids = SENTENCEPIECE.encode(text, add_special_tokens=False)
    assert "".join(stream(SENTENCEPIECE, ids)) == SENTENCEPIECE.backend.decode(ids) == text.replace("▁", " ")


@settings(max_examples=100)
@given(text=st.text(st.characters(max_codepoint=0x1FFFF, exclude_categories=["Cc", "Cs"])))
def test_streamed_text_never_shows_half_a_character(byte_level: Tokenizer, text: str) -> None:
    """Control characters are left out: this vocabulary lacks some of their bytes."""
    ids = byte_level.encode(text, add_special_tokens=False)
    pieces = stream(byte_level, ids, skip=False)
    assert "".join(pieces) == text
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")
    assert pieces[-1] == ""


def test_a_character_appears_with_its_last_byte() -> None:
    ids = [3 + byte for byte in "é天🙂".encode()]
    assert stream(SENTENCEPIECE, ids) == ["", "é", "", "", "天", "", "", "", "🙂", ""]


def test_a_cut_character_shows_at_the_end_and_spares_the_one_before() -> None:
    ids = [3 + byte for byte in "天气".encode()[:-1]]
    assert stream(SENTENCEPIECE, ids) == ["", "", "天", "", "", "\ufffd"]


def test_the_space_before_a_text_is_dropped_once() -> None:
    the = SENTENCEPIECE.token_id("▁the")
    assert the is not None
    assert stream(SENTENCEPIECE, [the, the]) == ["the", " the", ""]


def test_a_continued_text_keeps_its_first_space() -> None:
    the = SENTENCEPIECE.token_id("▁the")
    assert the is not None
    assert Detokenizer(SENTENCEPIECE, mid_text=True).feed([the]) == " the"


@pytest.mark.parametrize("scheme", ["always", "never"])
def test_metaspace_decoding_equals_the_library(scheme: str) -> None:
    tokenizer = sentencepiece_like(type="Metaspace", replacement="▁", prepend_scheme=scheme, split=True)
    ids = [
        token_id for name in ("▁the", "an", "▁", "▁t") if (token_id := tokenizer.token_id(name)) is not None
    ]
    assert "".join(stream(tokenizer, ids)) == tokenizer.backend.decode(ids)


def test_token_bytes_stay_those_of_the_vocabulary(byte_level: Tokenizer) -> None:
    for _ in range(2):  # looked up, then remembered
        for token_id in range(byte_level.vocab_size):
            entry = byte_level.backend.id_to_token(token_id)
            assert entry is not None
            assert byte_level.token_bytes(token_id) == byte_level.codec.encode(entry)


def test_token_bytes_join_to_the_text(byte_level: Tokenizer) -> None:
    text = "naïve 天气 🙂"
    ids = byte_level.encode(text, add_special_tokens=False)
    assert b"".join(byte_level.token_bytes(token_id) for token_id in ids) == text.encode()


def test_an_id_beyond_the_vocabulary_has_no_bytes(byte_level: Tokenizer) -> None:
    assert byte_level.token_bytes(byte_level.vocab_size + 3) == b""


def test_a_long_stream_costs_the_same_a_token() -> None:
    """The state that a stream keeps does not grow: at most three bytes of an unfinished character."""
    detokenizer = Detokenizer(SENTENCEPIECE)
    for _ in range(2_000):
        detokenizer.feed([SENTENCEPIECE.token_id("an") or 0, 3 + 0xE5])
    held, _ = detokenizer._decoder.getstate()
    assert len(held) <= 3
