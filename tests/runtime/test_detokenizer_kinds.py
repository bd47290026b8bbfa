"""Streamed text equals decoded text for every kind of tokenizer, or loading refuses that kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from gristmill.runtime.detokenizer import Detokenizer
from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.tokenizer import Tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", *"abcehlot.", "▁the", "▁a", "he", "é", "天", "▁天", "🙂", "##a", "a</w>", "Ġa"]
VOCABULARY = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]
IDS = {token: index for index, token in enumerate(VOCABULARY)}
MARK = decoders.Replace("▁", " ")


def build(model: models.Model, decoder: Any, *, normalizer: Any = None, splitter: Any = None) -> Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.decoder = decoder
    if normalizer is not None:
        backend.normalizer = normalizer
    if splitter is not None:
        backend.pre_tokenizer = splitter
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens([AddedToken("<tool_call>"), AddedToken(" wide ")])
    return Tokenizer.from_files({"tokenizer.json": backend.to_str().encode()}, {})


def sentencepiece(decoder: Any) -> Tokenizer:
    model = models.BPE(IDS, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    return build(model, decoder, normalizer=normalizers.Replace(" ", "▁"))


def unigram(decoder: Any, *, byte_fallback: bool) -> Tokenizer:
    scores = [(token, -float(index)) for index, token in enumerate(VOCABULARY)]
    model = models.Unigram(scores, unk_id=0, byte_fallback=byte_fallback)
    return build(model, decoder, splitter=pre_tokenizers.Metaspace())


def byte_level(*, prefix_space: bool, split: bool) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("Ã", "©"), ("å", "¤"), ("ð", "Ł")]
    vocabulary = {
        token: index for index, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])
    }
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=split)
    return build(models.BPE(vocabulary, merges), decoders.ByteLevel(), splitter=splitter)


def sequence(*steps: Any) -> Any:
    return decoders.Sequence(list(steps))


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": lambda: byte_level(prefix_space=False, split=True),
    "byte level, prefix space": lambda: byte_level(prefix_space=True, split=True),
    "byte level, no splitting": lambda: byte_level(prefix_space=False, split=False),
    "llama 2": lambda: sentencepiece(
        sequence(MARK, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0))
    ),
    "gemma": lambda: sentencepiece(sequence(MARK, decoders.ByteFallback(), decoders.Fuse())),
    "byte fallback, metaspace": lambda: sentencepiece(
        sequence(decoders.ByteFallback(), decoders.Metaspace())
    ),
    "metaspace, always": lambda: sentencepiece(decoders.Metaspace(prepend_scheme="always")),
    "metaspace, first": lambda: sentencepiece(decoders.Metaspace(prepend_scheme="first")),
    "metaspace, never": lambda: sentencepiece(decoders.Metaspace(prepend_scheme="never")),
    "metaspace, another mark": lambda: sentencepiece(decoders.Metaspace(replacement="h")),
    "unigram": lambda: unigram(decoders.Metaspace(), byte_fallback=False),
    "unigram, byte fallback": lambda: unigram(
        sequence(decoders.ByteFallback(), decoders.Metaspace()), byte_fallback=True
    ),
    "nested": lambda: sentencepiece(sequence(sequence(MARK, decoders.ByteFallback()), decoders.Fuse())),
    "replaced twice": lambda: sentencepiece(sequence(MARK, decoders.Replace("e", "oo"), decoders.Fuse())),
}
UNSTREAMED: dict[str, Any] = {
    "wordpiece": decoders.WordPiece(),
    "bpe suffix": decoders.BPEDecoder(),
    "ctc": decoders.CTC(),
    "none": None,
    "strip both ends": sequence(MARK, decoders.Strip(" ", 1, 1)),
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return KINDS[request.param]()


def stream(tokenizer: Tokenizer, ids: list[int], sizes: list[int], *, skip: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    pieces: list[str] = []
    at = 0
    while at < len(ids):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(detokenizer.feed(ids[at : at + size]))
        at += size
    return [*pieces, detokenizer.flush()]


@settings(max_examples=40)
@given(data=st.data(), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), skip=st.booleans())
def test_any_stream_of_tokens_equals_decoding_at_once(
    tokenizer: Tokenizer, data: st.DataObject, sizes: list[int], skip: bool
) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=25))
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(stream(tokenizer, ids, sizes, skip=skip)) == whole


@settings(max_examples=40)
@given(
    text=st.text(st.sampled_from("abcehlot. é天🙂Ġ\n"), max_size=20),
    sizes=st.lists(st.integers(1, 4), min_size=1),
)
def test_the_stream_of_a_text_is_what_the_library_decodes(
    tokenizer: Tokenizer, text: str, sizes: list[int]
) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = stream(tokenizer, ids, sizes, skip=True)
    assert "".join(pieces) == tokenizer.backend.decode(ids, skip_special_tokens=True)


@settings(max_examples=40)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_a_character_is_never_shown_in_parts(text: str) -> None:
    for kind in ("byte level", "gemma"):
        tokenizer = KINDS[kind]()
        pieces = stream(tokenizer, tokenizer.encode(text, add_special_tokens=False), [1], skip=True)
        assert "".join(pieces).count("\ufffd") == text.count("\ufffd")
        assert pieces[-1] == ""


@pytest.mark.parametrize("kind", UNSTREAMED)
def test_what_can_not_be_streamed_is_refused_when_it_is_loaded(kind: str) -> None:
    backend = tokenizers.Tokenizer(models.BPE(IDS, [], unk_token="<unk>"))
    if UNSTREAMED[kind] is not None:
        backend.decoder = UNSTREAMED[kind]
    with pytest.raises(UnsupportedError, match="decoder that we can't stream"):
        Tokenizer.from_files({"tokenizer.json": backend.to_str().encode()}, {})
