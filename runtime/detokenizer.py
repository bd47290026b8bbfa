"""Turn a stream of tokens into text, piece by piece, without ever showing half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["Detokenizer"]


class Detokenizer:
    """Incremental decoding of one sequence at a constant cost a token.

    The pieces returned by `feed` and `flush` joined are `Tokenizer.decode` of
    all tokens. The bytes of an unfinished character are held back; bytes that
    can't become one are U+FFFD. `mid_text` says that the sequence continues a
    text, so that a SentencePiece model's first space is kept.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, mid_text: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._strip = 0 if mid_text else tokenizer.codec.strip_start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete; often one token, several after speculation."""
        token_bytes, skipped = self._tokenizer.token_bytes, self._skipped
        data = b"".join([token_bytes(token_id) for token_id in token_ids if token_id not in skipped])
        while self._strip and data:
            if not data.startswith(b" "):
                self._strip = 0
                break
            data = data[1:]
            self._strip -= 1
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is still held back, at the sequence's end: U+FFFD or nothing."""
        return self._decoder.decode(b"", final=True)
