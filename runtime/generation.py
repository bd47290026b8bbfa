"""One answer being written: logits in, text that is safe to show out, and the decision when it ends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.core.request import Request
from gristmill.runtime.core.step_plan import Chunk
from gristmill.runtime.detokenizer import Detokenizer
from gristmill.runtime.outputs import FinishReason, OutputDelta, PromptProgress
from gristmill.runtime.sampling.logprobs import TokenLogprobs, token_logprobs
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.sampling.sampler import SampledToken
from gristmill.runtime.sampling.state import make_sampler_state
from gristmill.runtime.sampling.stop import StopStrings
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["Generation"]


class Generation:
    """Completion `index` of a request. `params` have their seed and max_tokens filled in."""

    def __init__(
        self,
        request_id: str,
        index: int,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams,
        tokenizer: Tokenizer,
        vocab_size: int,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> None:
        assert params.seed is not None
        assert params.max_tokens is not None
        self.request_id = request_id
        self.index = index
        self._params = params
        scores = params.prompt_logprobs is not None
        self.request = Request(
            f"{request_id}/{index}", prompt_token_ids, params.max_tokens, scores, priority, cache_salt
        )
        ends = set(params.stop_token_ids)
        self._eos_token_ids = frozenset(() if params.ignore_eos else tokenizer.eos_token_ids)
        self._end_token_ids = self._eos_token_ids | ends
        self.sampler_state = make_sampler_state(
            params,
            seed=params.seed,
            index=index,
            prompt_token_ids=prompt_token_ids,
            end_token_ids=self._end_token_ids,
            vocab_size=vocab_size,
        )
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._stops = StopStrings(params.stop, include=params.include_stop_str_in_output)
        self._prompt_logprobs: list[TokenLogprobs | None] = []

    def score(self, chunk: Chunk, rows: NDArray[np.float32]) -> None:
        """Take the rows of a scored prompt's chunk. Raises InternalError for logits that are not numbers."""
        if chunk.start == 0:  # also when a preempted request begins again
            self._prompt_logprobs = [None]
        # The row at a position judges the token after it; the prompt's last row judges the answer.
        token_ids = chunk.request.prompt_token_ids[chunk.start + 1 : chunk.start + 1 + len(rows)]
        self._prompt_logprobs += token_logprobs(rows, token_ids, self._params.prompt_logprobs or 0)

    def samples(self, chunk: Chunk) -> bool:
        """True when the chunk's last row chooses a token."""
        return chunk.completes and self.request.max_tokens > 0

    def accept(self, chunk: Chunk, sampled: SampledToken | None) -> OutputDelta | None:
        """What a chunk and its token, if it `samples` one, add; None if that is nothing."""
        progress = self._progress(chunk)
        if not chunk.completes:
            return None if progress is None else self._delta(progress=progress)
        scores = tuple(self._prompt_logprobs) if self.request.score_prompt else None
        self.request.score_prompt = False
        if sampled is None:
            return self._delta(finish_reason="length", prompt_logprobs=scores, progress=progress)
        self.request.token_ids.append(sampled.token_id)
        return self._extend(sampled, scores, progress)

    def end(self, reason: FinishReason, error: Exception | None = None) -> OutputDelta:
        """The last delta of an answer that ends from outside: what was held back, and why it ends."""
        return self._delta(text=self._flush(), finish_reason=reason, error=error)

    def _progress(self, chunk: Chunk) -> PromptProgress | None:
        """How far the prompt is read, if the chunk has some of it."""
        total = len(self.request.prompt_token_ids)
        if chunk.start >= total:
            return None
        return PromptProgress(total, self.request.num_cached, min(total, chunk.start + chunk.length))

    def _extend(
        self,
        sampled: SampledToken,
        prompt_logprobs: tuple[TokenLogprobs | None, ...] | None,
        progress: PromptProgress | None,
    ) -> OutputDelta:
        token_id = sampled.token_id
        stopped = token_id in self._end_token_ids
        shows = not stopped or self._params.include_stop_str_in_output
        long_enough = self.request.num_output >= self._params.min_tokens
        text = self._stops.feed(self._detokenizer.feed([token_id]) if shows else "", armed=long_enough)
        reason: FinishReason | None = None
        stop_reason: int | str | None = None
        if self._stops.matched is not None:
            reason, stop_reason = "stop", self._stops.matched
        elif stopped:
            reason, stop_reason = "stop", None if token_id in self._eos_token_ids else token_id
            text += self._flush()
        elif self.request.num_output >= self.request.max_tokens:
            reason = "length"
            text += self._flush()
        return self._delta(
            text=text,
            token_ids=(token_id,),
            logprobs=() if sampled.logprobs is None else (sampled.logprobs,),
            finish_reason=reason,
            stop_reason=stop_reason,
            prompt_logprobs=prompt_logprobs,
            progress=progress,
        )

    def _flush(self) -> str:
        return self._stops.feed(self._detokenizer.flush(), armed=False) + self._stops.flush()

    def _delta(
        self,
        *,
        text: str = "",
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
        finish_reason: FinishReason | None = None,
        stop_reason: int | str | None = None,
        error: Exception | None = None,
        prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None,
        progress: PromptProgress | None = None,
    ) -> OutputDelta:
        ended = finish_reason is not None
        return OutputDelta(
            self.request_id,
            self.index,
            text,
            token_ids,
            logprobs,
            finish_reason,
            stop_reason,
            error,
            prompt_logprobs,
            progress,
            self.request.num_preemptions if ended else 0,
            self.request.num_recomputed if ended else 0,
        )
