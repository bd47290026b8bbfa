"""What the engine gives back: pieces while a request runs, and the whole they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from gristmill.runtime.sampling.logprobs import TokenLogprobs

__all__ = [
    "CompletionOutput",
    "FinishReason",
    "OutputCollector",
    "OutputDelta",
    "PromptProgress",
    "RequestOutput",
]

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far a prompt is read: `computed` of `total` tokens, the first `cached` of them from the cache."""

    total: int
    cached: int
    computed: int


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one step added to completion `index` of a request.

    `text` is safe to show at once: whole characters, and no part of a stop
    string. The pieces joined are the whole text. `finish_reason` is set on a
    completion's last delta, `stop_reason` to the stop string or token id that
    ended it (None for the model's own end), `error` when it failed.
    `prompt_logprobs` comes on a completion's first delta, if asked for.
    `progress` comes with every step that reads a part of the prompt, the first
    of them when the completion begins to run; such a delta may hold nothing
    else. `num_preemptions` and `num_recomputed` (tokens computed again after
    them) are set on the last delta.
    """

    request_id: str
    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: Exception | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    progress: PromptProgress | None = None
    num_preemptions: int = 0
    num_recomputed: int = 0


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One finished answer. `logprobs` is None when they were not asked for."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """All answers to one prompt. `prompt` is None when token ids were given.

    The first entry of `prompt_logprobs` is None: nothing stands before the first token.
    `num_cached_tokens` of the prompt were in the prefix cache when its first answer began.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    num_cached_tokens: int = 0


@dataclass(slots=True)
class _Parts:
    """The pieces of one completion so far."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    last: OutputDelta | None = None


class OutputCollector:
    """Adds up the deltas of one request."""

    def __init__(
        self, request_id: str, prompt: str | None, prompt_token_ids: Sequence[int], n: int, *, logprobs: bool
    ) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._prompt_token_ids = tuple(prompt_token_ids)
        self._logprobs = logprobs
        self._parts = [_Parts() for _ in range(n)]
        self._prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self._num_cached_tokens: int | None = None

    def add(self, delta: OutputDelta) -> None:
        """Add one delta; raises its error if the request failed."""
        if delta.error is not None:
            raise delta.error
        parts = self._parts[delta.index]
        parts.texts.append(delta.text)
        parts.token_ids += delta.token_ids
        parts.logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs
        if delta.progress is not None and self._num_cached_tokens is None:
            self._num_cached_tokens = delta.progress.cached
        if delta.finish_reason is not None:
            parts.last = delta

    @property
    def finished(self) -> bool:
        """True once every completion has ended."""
        return all(parts.last is not None for parts in self._parts)

    def result(self) -> RequestOutput:
        """The whole output of a finished request."""
        outputs = tuple(self._completion(index, parts) for index, parts in enumerate(self._parts))
        return RequestOutput(
            self._request_id,
            self._prompt,
            self._prompt_token_ids,
            outputs,
            self._prompt_logprobs,
            self._num_cached_tokens or 0,
        )

    def _completion(self, index: int, parts: _Parts) -> CompletionOutput:
        last = parts.last
        assert last is not None
        assert last.finish_reason is not None
        return CompletionOutput(
            index=index,
            text="".join(parts.texts),
            token_ids=tuple(parts.token_ids),
            logprobs=tuple(parts.logprobs) if self._logprobs else None,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
        )
