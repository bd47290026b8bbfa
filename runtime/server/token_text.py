"""Tokens and their log probabilities as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.runtime.detokenizer import Detokenizer
from gristmill.runtime.sampling.logprobs import TokenLogprobs
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["CompletionLogprobs", "chat_logprobs", "prompt_logprobs", "token_text"]


def token_text(tokenizer: Tokenizer, token_id: int, *, as_id: bool = False) -> str:
    """A token as text; one that is no whole character as OpenAI writes it: `bytes:\\xe2\\x82`.

    With `as_id` as vLLM's `return_tokens_as_token_ids` writes it: `token_id:42`.
    """
    if as_id:
        return f"token_id:{token_id}"
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], *, as_ids: bool = False
) -> dict[str, Any]:
    """The `logprobs` of a chat choice: one entry for each token."""

    def show(token_id: int, logprob: float) -> dict[str, Any]:
        text = token_text(tokenizer, token_id, as_id=as_ids)
        return {"token": text, "logprob": logprob, "bytes": list(tokenizer.token_bytes(token_id))}

    content = [
        show(entry.token_id, entry.logprob) | {"top_logprobs": [show(*best) for best in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def prompt_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs | None], count: int
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: for each position its token and the `count` best, by id; null for the first.

    A token's rank is null where it is not among the best.
    """
    return [None if entry is None else _ranked(tokenizer, entry, count) for entry in entries]


def _ranked(tokenizer: Tokenizer, entry: TokenLogprobs, count: int) -> dict[str, Any]:
    ranked: dict[int, tuple[float, int | None]] = {
        token_id: (logprob, rank) for rank, (token_id, logprob) in enumerate(entry.top[:count], 1)
    }
    ranked.setdefault(entry.token_id, (entry.logprob, None))
    return {
        str(token_id): {"logprob": logprob, "rank": rank, "decoded_token": token_text(tokenizer, token_id)}
        for token_id, (logprob, rank) in ranked.items()
    }


class CompletionLogprobs:
    """The `logprobs` of one completion choice, piece by piece; offsets count characters of its text."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._offset = 0

    def first_token(self, token_id: int) -> dict[str, Any]:
        """The entry of an echoed prompt's first token, which nothing predicts."""
        return self._entries([token_id], [None], [None])

    def add(self, entries: Sequence[TokenLogprobs], count: int) -> dict[str, Any]:
        """The entries of the next tokens, with the `count` best at each place and the token's own."""
        tops = [
            {self._text(token_id): logprob for token_id, logprob in entry.top[:count]}
            | {self._text(entry.token_id): entry.logprob}
            for entry in entries
        ]
        return self._entries(
            [entry.token_id for entry in entries], [entry.logprob for entry in entries], tops
        )

    def _text(self, token_id: int) -> str:
        return token_text(self._tokenizer, token_id, as_id=self._as_ids)

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
            "tokens": [self._text(token_id) for token_id in token_ids],
            "token_logprobs": list(logprobs),
            "top_logprobs": list(tops),
            "text_offset": offsets,
        }
