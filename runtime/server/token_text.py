"""Tokens and their log probabilities as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.runtime.detokenizer import Detokenizer
from gristmill.runtime.sampling.logprobs import TokenLogprobs
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["CompletionLogprobs", "chat_logprobs", "token_text"]


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as text; one that is no whole character as OpenAI writes it: `bytes:\\xe2\\x82`."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The `logprobs` of a chat choice: one entry for each token."""
    content = [
        _chat_entry(tokenizer, entry.token_id, entry.logprob)
        | {"top_logprobs": [_chat_entry(tokenizer, token_id, logprob) for token_id, logprob in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _chat_entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {"token": token_text(tokenizer, token_id), "logprob": logprob, "bytes": list(data)}


class CompletionLogprobs:
    """The `logprobs` of one completion choice, piece by piece; offsets count characters of its text."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._offset = 0

    def first_token(self, token_id: int) -> dict[str, Any]:
        """The entry of an echoed prompt's first token, which nothing predicts."""
        return self._entries([token_id], [None], [None])

    def add(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The entries of the next tokens."""
        tops = [
            {token_text(self._tokenizer, token_id): logprob for token_id, logprob in entry.top}
            | {token_text(self._tokenizer, entry.token_id): entry.logprob}
            for entry in entries
        ]
        return self._entries(
            [entry.token_id for entry in entries], [entry.logprob for entry in entries], tops
        )

    def _entries(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float | None],
        tops: Sequence[dict[str, float] | None],
    ) -> dict[str, Any]:
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset)
            self._offset += len(self._detokenizer.feed([token_id]))
        return {
            "tokens": [token_text(self._tokenizer, token_id) for token_id in token_ids],
            "token_logprobs": list(logprobs),
            "top_logprobs": list(tops),
            "text_offset": offsets,
        }
