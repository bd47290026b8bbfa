"""What completions and chats share on the way from prompts to a response."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.runtime.async_engine import AnswerStream
from gristmill.runtime.engine import EngineRequest
from gristmill.runtime.errors import RequestError
from gristmill.runtime.outputs import OutputCollector, PromptProgress, RequestOutput
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.server.caller import Caller
from gristmill.runtime.server.models import ServedModel, new_id
from gristmill.runtime.server.prefix_watch import PrefixReport, prefix_headers
from gristmill.runtime.server.prompts import cache_salt_of
from gristmill.runtime.server.protocol import ChatRequest, CompletionRequest
from gristmill.runtime.server.usage import UsageCounter

__all__ = ["Submission", "check_stream", "collect", "prepare", "submit"]


@dataclass(frozen=True, slots=True)
class Submission:
    """Prompts that were queued together; `head` holds what every response and chunk of them begins with."""

    head: dict[str, Any]
    requests: Sequence[EngineRequest]
    stream: AnswerStream
    usage: UsageCounter
    begun: float
    prefix_report: Awaitable[PrefixReport | None] | None

    async def debug_headers(self) -> dict[str, str]:
        """What the caller asked to be told of its first prompt, once that has begun to run."""
        return {} if self.prefix_report is None else prefix_headers(await self.prefix_report)

    def progress(self, progress: PromptProgress) -> dict[str, int]:
        """How far a prompt is read, as llama-server tells it; milliseconds count from when it was queued."""
        return {
            "total": progress.total,
            "cache": progress.cached,
            "processed": progress.computed,
            "time_ms": round(1000 * (time.monotonic() - self.begun)),
        }


def check_stream(request: CompletionRequest | ChatRequest) -> None:
    """Raise RequestError for options of a stream that was not asked for, and for what no stream can show."""
    if request.prompt_logprobs is not None and request.stream:
        raise RequestError("prompt_logprobs needs stream = false", field="prompt_logprobs")
    for name in ("stream_options", "return_progress"):
        if getattr(request, name) and not request.stream:
            raise RequestError(f"{name} needs stream = true", field=name)
    if request.continuous_usage and not request.include_usage:
        raise RequestError("continuous_usage_stats needs include_usage = true", field="stream_options")


def prepare(
    model: ServedModel,
    prompt: str | Sequence[int],
    params: SamplingParams,
    request: CompletionRequest | ChatRequest,
    caller: Caller,
) -> EngineRequest:
    """Tokenize and check one prompt; call it on the model's reader. Raises RequestError."""
    if isinstance(prompt, str) and request.truncate_prompt_tokens is None:
        model.prompts.check_length(prompt)
    return model.engine.engine.prepare(
        prompt,
        params,
        add_special_tokens=request.add_special_tokens,
        priority=request.priority,
        cache_salt=cache_salt_of(caller.tenant, request.cache_salt),
        truncate_prompt_tokens=request.truncate_prompt_tokens,
    )


def submit(
    model: ServedModel,
    prefix: str,
    kind: str,
    requests: Sequence[EngineRequest],
    request: CompletionRequest | ChatRequest,
    caller: Caller,
) -> Submission:
    """Queue prompts for one response of object `kind`. Raises RequestError when there is no room."""
    answer_id = new_id(prefix)
    head: dict[str, Any] = {"id": answer_id, "object": kind, "created": int(time.time()), "model": model.name}
    if "priority" in request.model_fields_set:
        head["priority"] = request.priority
    stream = model.engine.submit(answer_id, requests)
    prefixes = model.prefixes if caller.asks_prefix else None
    report = None if prefixes is None else prefixes.ask(f"{answer_id}-0")
    return Submission(head, requests, stream, UsageCounter(requests), time.monotonic(), report)


async def collect(submission: Submission) -> list[RequestOutput]:
    """Wait for all answers; raises the error of the first that fails."""
    collectors = [
        OutputCollector(
            submission.head["id"],
            request.prompt,
            request.prompt_token_ids,
            request.params.n,
            logprobs=request.params.logprobs is not None,
        )
        for request in submission.requests
    ]
    async for deltas in submission.stream:
        for index, delta in deltas:
            submission.usage.add(index, delta)
            collectors[index].add(delta)
    return [collector.result() for collector in collectors]
