"""The engine: requests in, steps, pieces of answers out."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.core.config import SchedulerConfig
from gristmill.runtime.core.limits import check_fits
from gristmill.runtime.core.scheduler import Scheduler
from gristmill.runtime.core.step_plan import Chunk, StepPlan
from gristmill.runtime.engine_stats import EngineStats
from gristmill.runtime.errors import GristmillError, InputError, RequestError
from gristmill.runtime.executors.base import Executor, ExecutorInfo, SequenceStep
from gristmill.runtime.generation import Generation
from gristmill.runtime.outputs import FinishReason, OutputDelta
from gristmill.runtime.sampling.bad_words import bad_word_token_ids
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.sampling.sampler import RowSampler, SampledToken, sample_rows
from gristmill.runtime.settings import EngineSettings
from gristmill.runtime.step_profile import StepProfile
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["EngineRequest", "LLMEngine"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A checked request: `params` have their seed and max_tokens filled in.

    Of two requests the one with the lower `priority` goes first. Requests share
    cached prefixes only under the same `cache_salt`.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""


class LLMEngine:
    """Serves many requests over one executor by continuous batching.

    One thread calls `add_request`, `abort`, `step` and `close`; `prepare`,
    `stats`, `retry_after`, `step_costs` and the properties may be used from any.
    Takes the executor over and closes it.
    `clock` tells the seconds from which it learns how long steps take.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer,
        settings: EngineSettings,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._executor = executor
        self._row_sampler = executor if isinstance(executor, RowSampler) else None
        self._profile = StepProfile(executor)
        self._tokenizer = tokenizer
        self._settings = settings
        self._clock = clock
        self._scheduler = Scheduler(
            SchedulerConfig(
                num_blocks=executor.cache.num_blocks,
                block_size=executor.cache.block_size,
                max_model_len=_max_model_len(executor, settings),
                max_num_seqs=settings.max_num_seqs,
                max_num_batched_tokens=settings.max_num_batched_tokens,
                max_scored_tokens=settings.max_scored_tokens,
                max_waiting=settings.max_waiting,
                max_waiting_tokens=settings.max_waiting_tokens,
                itl_target=settings.itl_target_ms / 1000,
                prefix_caching=settings.prefix_caching,
            )
        )
        self._generations: dict[str, Generation] = {}
        self._deltas: list[OutputDelta] = []
        self._closed = False

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    @property
    def settings(self) -> EngineSettings:
        """What it was asked for."""
        return self._settings

    @property
    def info(self) -> ExecutorInfo:
        """What executes the model."""
        return self._executor.info

    @property
    def max_model_len(self) -> int:
        """Tokens that one request may have, prompt and answer together."""
        return self._scheduler.config.max_model_len

    @property
    def capacity(self) -> int:
        """Completions that may run and wait at once."""
        return self._scheduler.config.capacity

    @property
    def num_vacancies(self) -> int:
        """Completions that `add_request` accepts now."""
        return self._scheduler.num_vacancies

    @property
    def has_work(self) -> bool:
        """True while `step` has something to do or to report."""
        return bool(self._generations or self._deltas)

    def has_room(self, request: EngineRequest) -> bool:
        """Whether `add_request` accepts this one now."""
        try:
            self._check_vacancies(request)
        except RequestError:
            return False
        return True

    def stats(self) -> EngineStats:
        """Counts for metrics."""
        scheduler = self._scheduler
        counts = scheduler.counts
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_blocks=scheduler.config.num_blocks,
            num_free_blocks=scheduler.num_free_blocks,
            num_held_blocks=scheduler.num_held_blocks,
            num_preemptions=counts.preemptions,
            num_waiting_tokens=scheduler.num_waiting_tokens,
            num_cached_blocks=scheduler.num_cached_blocks,
            num_recomputed=counts.recomputed,
            prefix_queries=counts.prefix_queries,
            prefix_hits=counts.prefix_hits,
        )

    def retry_after(self) -> float:
        """Seconds until the queue has likely moved, by what steps took so far."""
        return self._scheduler.retry_after()

    def step_costs(self) -> dict[str, float]:
        """Seconds of a step by what it does, as learned so far."""
        return self._scheduler.step_costs()

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; on the thread that steps. Requests that run go on."""
        self._scheduler.reset_prefix_cache()

    def prepare(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        add_special_tokens: bool = True,
        priority: int = 0,
        cache_salt: str = "",
        truncate_prompt_tokens: int | None = None,
    ) -> EngineRequest:
        """Check a request and tokenize its prompt, without queueing it. Raises RequestError.

        `truncate_prompt_tokens` keeps the last so many tokens of the prompt, -1 those that fit beside
        the answer.
        """
        vocab_size = self._executor.plan.vocab_size
        if params.bad_words:
            word_ids = bad_word_token_ids(params.bad_words, self._tokenizer)
            params = replace(params, bad_word_ids=(*params.bad_word_ids, *word_ids))
        params.check_vocabulary(vocab_size)
        if params.n > self.capacity:
            raise RequestError("n is invalid", field="n", found=params.n, expected=f"at most {self.capacity}")
        text = prompt if isinstance(prompt, str) else None
        if isinstance(prompt, str):
            prompt = self._tokenizer.encode_prompt(prompt, add_special_tokens=add_special_tokens)
        token_ids = _checked_token_ids(prompt, vocab_size)
        if not token_ids:
            raise RequestError("the prompt is empty", field="prompt", found="0 tokens", expected="at least 1")
        if truncate_prompt_tokens is not None:
            most = self._truncated_length(truncate_prompt_tokens, params.max_tokens)
            if len(token_ids) > most:
                token_ids = token_ids[-most:]
                text = None if text is None else self._tokenizer.decode(token_ids, skip_special_tokens=True)
        max_tokens = params.max_tokens
        if max_tokens is None:
            max_tokens = max(1, self.max_model_len - len(token_ids))
        check_fits(self._scheduler.config, len(token_ids), max_tokens)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        params = replace(params, max_tokens=max_tokens, seed=seed)
        return EngineRequest(text, token_ids, params, priority, cache_salt)

    def add_request(self, request_id: str, request: EngineRequest) -> None:
        """Queue all completions of a request, or none: raises RequestError (queue_full, closed)."""
        params = request.params
        if self._closed:
            raise RequestError("the engine is closed", code="closed")
        self._check_vacancies(request)
        for index in range(params.n):
            generation = Generation(
                request_id,
                index,
                request.prompt_token_ids,
                params,
                self._tokenizer,
                self._executor.plan.vocab_size,
                priority=request.priority,
                cache_salt=request.cache_salt,
            )
            self._scheduler.add(generation.request)
            self._generations[generation.request.request_id] = generation

    def abort(self, request_id: str | None = None) -> None:
        """End what is left of a request, or of all, and free the blocks; one that has ended is no error."""
        for generation in list(self._generations.values()):
            if request_id is None or generation.request_id == request_id:
                self._end(generation, "abort")

    def fail(self, error: Exception) -> None:
        """End every request with an error, after a fault that leaves no step to blame."""
        for generation in list(self._generations.values()):
            self._end(generation, "error", error)

    def step(self) -> list[OutputDelta]:
        """Compute one step of all running requests; returns what they and aborted ones have to say.

        A failed step ends the requests that took part in it, each with the error; the others go on.
        """
        begin = self._clock()
        plan = self._scheduler.schedule()
        logits = self._execute(plan)
        if logits is not None:
            self._scheduler.advance(plan)
            self._accept(plan.chunks, logits)
            self._scheduler.observe(plan, self._clock() - begin)
        return self.take_outputs()

    def take_outputs(self) -> list[OutputDelta]:
        """What was said since the last step, without another one: the ends of aborted and failed requests."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def check_integrity(self) -> None:
        """Raise InternalError unless blocks and requests are conserved."""
        self._scheduler.check_integrity()

    def close(self) -> None:
        """Abort what runs and close the executor; closing again has no effect."""
        if not self._closed:
            self._closed = True
            self.abort()
            self._profile.stop()
            self._executor.close()

    def profile_lines(self) -> list[str]:
        """Once closed: how the steps' time was split, as a table; empty unless that was asked for."""
        return self._profile.lines()

    def _check_vacancies(self, request: EngineRequest) -> None:
        n = request.params.n
        self._scheduler.check_vacancies(n, n * len(request.prompt_token_ids))

    def _truncated_length(self, asked: int, max_tokens: int | None) -> int:
        """The prompt tokens to keep."""
        if asked == -1:
            return max(1, self.max_model_len - (1 if max_tokens is None else max_tokens))
        if not 1 <= asked <= self.max_model_len:
            raise RequestError(
                "truncate_prompt_tokens is invalid",
                field="truncate_prompt_tokens",
                found=asked,
                expected=f"-1, or 1 to {self.max_model_len}",
            )
        return asked

    def _execute(self, plan: StepPlan) -> NDArray[np.float32] | None:
        if not plan.chunks:
            return None
        self._profile.count_step()
        try:
            if plan.copies:
                self._executor.copy_blocks(plan.copies)
            return self._executor.execute([_sequence_step(chunk) for chunk in plan.chunks])
        except Exception as error:
            _logger.exception("a step over %d requests failed", len(plan.chunks))
            for chunk in plan.chunks:
                self._end(self._generations[chunk.request.request_id], "error", error)
            return None

    def _accept(self, chunks: Sequence[Chunk], logits: NDArray[np.float32]) -> None:
        """Give each request its rows and tokens; a fault in one ends that one alone."""
        outcomes = self._sample(chunks, logits)
        row = 0
        for chunk, outcome in zip(chunks, outcomes, strict=True):
            generation = self._generations[chunk.request.request_id]
            start, row = row, row + chunk.num_logit_rows
            try:
                if chunk.logits == "all":
                    generation.score(chunk, logits[start:row])
                if isinstance(outcome, GristmillError):
                    raise outcome
                delta = generation.accept(chunk, outcome)
            except GristmillError as error:
                self._end(generation, "error", error)
                continue
            if delta is not None:
                self._report(generation, delta)

    def _sample(
        self, chunks: Sequence[Chunk], logits: NDArray[np.float32]
    ) -> list[SampledToken | GristmillError | None]:
        """For each chunk the token that its last row chooses, or the error; None where none is due."""
        ends = list(accumulate(chunk.num_logit_rows for chunk in chunks))
        generations = [self._generations[chunk.request.request_id] for chunk in chunks]
        places = [i for i, chunk in enumerate(chunks) if generations[i].samples(chunk)]
        rows = [ends[i] - 1 for i in places]
        states = [generations[i].sampler_state for i in places]
        outcomes: list[SampledToken | GristmillError | None] = [None] * len(chunks)
        for i, outcome in zip(places, sample_rows(logits, rows, states, self._row_sampler), strict=True):
            outcomes[i] = outcome
        return outcomes

    def _end(self, generation: Generation, reason: FinishReason, error: Exception | None = None) -> None:
        self._report(generation, generation.end(reason, error))

    def _report(self, generation: Generation, delta: OutputDelta) -> None:
        self._deltas.append(delta)
        if delta.finish_reason is not None:
            request_id = generation.request.request_id
            self._scheduler.finish(request_id)
            del self._generations[request_id]


def _max_model_len(executor: Executor, settings: EngineSettings) -> int:
    limit = min(executor.plan.max_positions, executor.cache.num_blocks * executor.cache.block_size)
    if settings.max_model_len is None:
        return limit
    if settings.max_model_len > limit:
        raise InputError(
            "max_model_len is more than the model and its cache hold",
            found=settings.max_model_len,
            expected=f"at most {limit}",
        )
    return settings.max_model_len


def _sequence_step(chunk: Chunk) -> SequenceStep:
    token_ids = chunk.request.token_ids[chunk.start : chunk.start + chunk.length]
    return SequenceStep(token_ids, chunk.start, chunk.request.block_table, chunk.logits)


def _checked_token_ids(token_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    for token_id in token_ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise RequestError(
                "the prompt has an unknown token id",
                field="prompt",
                found=f"{token_id!r:.80}",
                expected=f"whole numbers from 0 to {vocab_size - 1}",
            )
    return tuple(token_ids)
