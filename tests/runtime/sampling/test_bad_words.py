"""Words that must not be written, as token sequences."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from gristmill.runtime.errors import RequestError
from gristmill.runtime.sampling.bad_words import bad_word_token_ids
from gristmill.runtime.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Byte-level, with " cat" as one token and "cat" as two."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "t"), ("Ġ", "c"), ("Ġc", "at")]
    vocabulary = {token: index for index, token in enumerate([*alphabet, *map("".join, merges)])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer.from_files({"tokenizer.json": backend.to_str().encode()}, {})


def as_text(tokenizer: Tokenizer, sequences: tuple[tuple[int, ...], ...]) -> list[list[str | None]]:
    return [[tokenizer.backend.id_to_token(token_id) for token_id in sequence] for sequence in sequences]


def test_a_word_is_withheld_at_a_texts_start_and_after_a_space(tokenizer: Tokenizer) -> None:
    assert as_text(tokenizer, bad_word_token_ids(["cat"], tokenizer)) == [["c", "at"], ["Ġcat"]]


def test_spaces_before_a_word_do_not_matter(tokenizer: Tokenizer) -> None:
    assert bad_word_token_ids(["  cat"], tokenizer) == bad_word_token_ids(["cat"], tokenizer)


def test_no_sequence_is_listed_twice(tokenizer: Tokenizer) -> None:
    assert len(bad_word_token_ids(["cat", "cat", "at"], tokenizer)) == 4


def test_a_word_of_spaces_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="without tokens") as caught:
        bad_word_token_ids(["cat", "  "], tokenizer)
    assert caught.value.field == "bad_words"
