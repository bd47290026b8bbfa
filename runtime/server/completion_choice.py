"""One choice of a completion: the echoed prompt if asked for, then text and log probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.runtime.engine import EngineRequest
from gristmill.runtime.outputs import CompletionOutput, OutputDelta
from gristmill.runtime.sampling.logprobs import TokenLogprobs
from gristmill.runtime.server.protocol import CompletionRequest
from gristmill.runtime.server.token_text import CompletionLogprobs, prompt_logprobs
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["CompletionChoice"]

Logprobs = dict[str, list[Any]]


class CompletionChoice:
    """Choice `index` of a response, whole or piece by piece; its first piece begins with the echo."""

    def __init__(
        self, tokenizer: Tokenizer, request: CompletionRequest, prompt: EngineRequest, index: int
    ) -> None:
        self._tokenizer = tokenizer
        self._request = request
        self._prompt = prompt
        self._index = index
        # An echoed prompt shows its special tokens, so the offsets must count them.
        skip = request.skip_special_tokens and not request.echo
        self._logprobs = CompletionLogprobs(
            tokenizer, skip_special_tokens=skip, as_ids=request.return_tokens_as_token_ids
        )
        self._begun = False

    def whole(
        self, output: CompletionOutput, prompt_scores: Sequence[TokenLogprobs | None] | None
    ) -> dict[str, Any]:
        """The choice of an answer that is complete."""
        choice = self._show(output.text, output.logprobs or (), prompt_scores, output.token_ids)
        if self._request.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(
                self._tokenizer, prompt_scores or (), self._request.prompt_logprobs
            )
        return choice | {"finish_reason": output.finish_reason, "stop_reason": output.stop_reason}

    def piece(self, delta: OutputDelta) -> dict[str, Any] | None:
        """What a step adds to a stream, None while that is nothing."""
        if not (delta.text or delta.token_ids or delta.finish_reason):
            return None
        first = not self._begun
        choice = self._show(delta.text, delta.logprobs, delta.prompt_logprobs, delta.token_ids)
        shows = choice["text"] or choice["logprobs"] is not None or "token_ids" in choice
        if not (shows or delta.finish_reason):
            return None
        if not first:
            choice.pop("prompt_token_ids", None)
        return choice | {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}

    def empty(self) -> dict[str, Any]:
        """A piece that adds nothing."""
        return {"index": self._index, "text": "", "logprobs": None, "finish_reason": None}

    def _show(
        self,
        text: str,
        logprobs: Sequence[TokenLogprobs],
        prompt_scores: Sequence[TokenLogprobs | None] | None,
        token_ids: Sequence[int],
    ) -> dict[str, Any]:
        shown: list[Logprobs] = []
        if self._request.echo and not self._begun:
            text = self._echo_text() + text
            shown += self._echo_logprobs(prompt_scores or ())
        self._begun = True
        choice: dict[str, Any] = {"index": self._index, "text": text, "logprobs": None}
        if self._request.logprobs is not None:
            choice["logprobs"] = _merge([*shown, self._logprobs.add(logprobs, self._request.logprobs)])
        if self._request.return_token_ids:
            choice["prompt_token_ids"] = list(self._prompt.prompt_token_ids)
            choice["token_ids"] = list(token_ids)
        return choice

    def _echo_text(self) -> str:
        if self._prompt.prompt is not None and self._request.truncate_prompt_tokens is None:
            return self._prompt.prompt
        return self._tokenizer.decode(self._prompt.prompt_token_ids, skip_special_tokens=False)

    def _echo_logprobs(self, entries: Sequence[TokenLogprobs | None]) -> list[Logprobs]:
        if self._request.logprobs is None:
            return []
        scored = [entry for entry in entries if entry is not None]
        return [
            self._logprobs.first_token(self._prompt.prompt_token_ids[0]),
            self._logprobs.add(scored, self._request.logprobs),
        ]


def _merge(parts: Sequence[Logprobs]) -> Logprobs:
    return {key: [item for part in parts for item in part[key]] for key in parts[0]}
