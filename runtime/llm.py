"""Offline use: a model as an object that answers lists of prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from gristmill.runtime.chat_form import Message
from gristmill.runtime.engine import EngineRequest, LLMEngine
from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.errors import InputError
from gristmill.runtime.executors.base import Executor, ExecutorInfo, KVCacheConfig
from gristmill.runtime.executors.load import open_engine
from gristmill.runtime.golden import golden_tolerance, require_golden, short_golden
from gristmill.runtime.memory import FreeMemory, MemoryPlan, free_memory, plan_memory
from gristmill.runtime.outputs import OutputCollector, OutputDelta, RequestOutput
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.settings import EngineSettings
from gristmill.runtime.tokenizer import Tokenizer, load_tokenizer

__all__ = ["LLM", "load_engine"]

Report = Callable[[str], None]


def load_engine(
    folder: EngineFolder,
    settings: EngineSettings | None = None,
    *,
    free: FreeMemory | None = None,
    report: Report | None = None,
    on_plan: Callable[[MemoryPlan], None] | None = None,
) -> LLMEngine:
    """Load a verified folder and prove it against its golden prompts.

    `free` is the memory that it may use, by default what is free now; `report`
    receives the memory plan, what was loaded and where the time went, line by line,
    `on_plan` the plan itself. Raises UnsupportedError for a target or number format that can't be executed,
    InputError or OutsideError (with the numbers) when memory does not suffice,
    IntegrityError when the engine does not give the recorded logits.
    """
    settings = settings or EngineSettings()
    tell = report or (lambda line: None)
    phases = _Phases()
    opened = open_engine(folder)
    settings, options = opened.modes.choose(settings, folder.kv_cache)
    memory = plan_memory(opened.plan, opened.weight_bytes(options.compute), settings, free or free_memory())
    for line in memory.lines():
        tell(line)
    if on_plan is not None:
        on_plan(memory)
    cache = KVCacheConfig(memory.num_blocks, memory.block_size, settings.kv_dtype)
    phases.end("engine file and plan")
    with ThreadPoolExecutor(1) as beside:  # the proof needs no Python; a large vocabulary takes as long
        reading = beside.submit(load_tokenizer, folder.checkpoint)
        executor = opened.load(cache, options)
        phases.end("weights and cache")
        try:
            tell(_describe(folder.name, executor.info, memory.max_model_len))
            if folder.golden:
                tell(_prove(executor, folder, settings))
                phases.end("proof")
            engine = LLMEngine(executor, reading.result(), settings)
            phases.end("tokenizer")
            tell(f"{folder.name}: {phases.line()}")
            return engine
        except BaseException:
            executor.close()
            raise


class LLM:
    """A model in this process. Close it, or use it as a context manager."""

    def __init__(self, engine: LLMEngine) -> None:
        """Takes the engine over; `load_engine` makes one of an artifact's folder."""
        self._engine = engine
        self._num_requests = 0

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._engine.tokenizer

    @property
    def info(self) -> ExecutorInfo:
        """What executes the model."""
        return self._engine.info

    @property
    def max_model_len(self) -> int:
        """Tokens that one request may have, prompt and answer together."""
        return self._engine.max_model_len

    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, texts or token ids, in their order; `params` is for all, or one for each.

        All are checked before any work. Raises RequestError for one that can't be served.
        """
        return list(self.generate_each(prompts, params))

    def generate_each(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[RequestOutput]:
        """As `generate`, each answer as soon as it and those before it are whole.

        Another call before the end drops what is left.
        """
        listed = [prompts] if isinstance(prompts, str) else list(prompts)
        each = zip(listed, _params_for(params, len(listed)), strict=True)
        return self._run([self._engine.prepare(prompt, chosen) for prompt, chosen in each])

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one chat, or several, rendered by the model's own template.

        `variables` are the template's (`enable_thinking`, ...). Raises RequestError
        when the template refuses a chat, with its own message.
        """
        chats: list[Any] = [messages] if _is_one_chat(messages) else list(messages)
        each = zip(chats, _params_for(params, len(chats)), strict=True)
        return list(self._run([self._prepare_chat(chat, chosen, tools, variables) for chat, chosen in each]))

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Iterator[OutputDelta]:
        """Answer one chat piece by piece, as it is made; another call before the end cuts it short."""
        request = self._prepare_chat(messages, params or SamplingParams(), tools, variables)
        with self._clean_engine() as engine:
            engine.add_request(self._next_id(), request)
            while engine.has_work:
                for delta in engine.step():
                    if delta.error is not None:
                        raise delta.error
                    yield delta

    def close(self) -> None:
        """Free the model; calling it again has no effect."""
        self._engine.close()

    def profile_lines(self) -> list[str]:
        """Once closed: how the steps' time was split, as a table; empty unless that was asked for."""
        return self._engine.profile_lines()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
    ) -> EngineRequest:
        text = self.tokenizer.apply_chat_template(
            messages, tools, add_generation_prompt=True, variables=variables
        )
        return self._engine.prepare(text, params, add_special_tokens=False)

    def _run(self, requests: Sequence[EngineRequest]) -> Iterator[RequestOutput]:
        collectors: dict[str, OutputCollector] = {}  # in the requests' order, those that were not given out
        waiting = list(reversed(requests))
        with self._clean_engine() as engine:
            while waiting or engine.has_work:
                self._admit(waiting, collectors)
                for delta in engine.step():
                    collectors[delta.request_id].add(delta)
                yield from _whole_ones(collectors)

    @contextmanager
    def _clean_engine(self) -> Iterator[LLMEngine]:
        """The engine, without requests before and after: an interrupt leaves none to the next call."""
        self._drop_requests()
        try:
            yield self._engine
        finally:
            self._drop_requests()

    def _drop_requests(self) -> None:
        self._engine.abort()
        self._engine.take_outputs()

    def _next_id(self) -> str:
        self._num_requests += 1
        return str(self._num_requests)

    def _admit(self, waiting: list[EngineRequest], collectors: dict[str, OutputCollector]) -> None:
        """Queue as many as the engine takes, so that any number of prompts may be given."""
        while waiting and self._engine.has_room(waiting[-1]):
            request = waiting.pop()
            request_id = self._next_id()
            collectors[request_id] = OutputCollector(
                request_id,
                request.prompt,
                request.prompt_token_ids,
                request.params.n,
                logprobs=request.params.logprobs is not None,
            )
            self._engine.add_request(request_id, request)


def _whole_ones(collectors: dict[str, OutputCollector]) -> Iterator[RequestOutput]:
    """Take out the first answers, up to one that is not whole."""
    while collectors:
        first = next(iter(collectors))
        if not collectors[first].finished:
            return
        yield collectors.pop(first).result()


class _Phases:
    """Where the time of a start goes."""

    def __init__(self) -> None:
        self._begun = self._last = time.monotonic()
        self._parts: list[str] = []

    def end(self, name: str) -> None:
        """The phase since the last one has ended."""
        now = time.monotonic()
        self._parts.append(f"{name} {now - self._last:.2f} s")
        self._last = now

    def line(self) -> str:
        """All phases and their sum."""
        return f"loaded in {self._last - self._begun:.2f} s: {', '.join(self._parts)}"


def _params_for(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise InputError(
            "params", found=f"{len(params)} of them", expected=f"one, or {count} as of the prompts"
        )
    return params


def _is_one_chat(messages: Sequence[Any]) -> bool:
    return bool(messages) and isinstance(messages[0], Mapping)


def _prove(executor: Executor, folder: EngineFolder, settings: EngineSettings) -> str:
    """One short golden prompt, or all of them; raises IntegrityError if the engine does not pass."""
    golden = folder.golden if settings.golden_full else (short_golden(folder.golden),)
    tolerance = settings.golden_tolerance
    if tolerance is None:
        tolerance = golden_tolerance(folder.tolerances, executor.info)
    proof = require_golden(executor, golden, tolerance)
    return (
        f"golden prompts: {len(proof.prompts)} of {len(folder.golden)} run, "
        f"largest KL {proof.kl_max:.2g} nats, {tolerance:.2g} allowed"
    )


def _describe(name: str, info: ExecutorInfo, max_model_len: int) -> str:
    kernels = "".join(f", {layer}: {kernel}" for layer, kernel in sorted(info.kernels.items()))
    return (
        f"{name}: executor {info.name}, compute {info.compute}, KV cache {info.kv_cache}, "
        f"context {max_model_len} tokens{kernels}"
    )
