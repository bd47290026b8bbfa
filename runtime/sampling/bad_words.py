"""The token sequences of words that must not be written."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.runtime.errors import RequestError
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["bad_word_token_ids"]


def bad_word_token_ids(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as tokens, as it stands at the start of a text and after a space.

    As in vLLM, other ways to cut the same text into tokens are not looked for.
    Raises RequestError for a word that has no tokens.
    """
    texts = [space + word.lstrip() for word in words for space in ("", " ")]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    for word, token_ids in zip(words, encoded[::2], strict=True):
        if not token_ids:
            raise RequestError(
                "bad_words has a word without tokens", field="bad_words", found=f"{word!r:.80}"
            )
    return tuple(dict.fromkeys(tuple(token_ids) for token_ids in encoded))
