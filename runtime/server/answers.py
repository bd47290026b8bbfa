"""What completions and chats share on the way from a submission to a response."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.runtime.async_engine import AnswerStream
from gristmill.runtime.engine import EngineRequest
from gristmill.runtime.errors import RequestError
from gristmill.runtime.outputs import OutputCollector, RequestOutput
from gristmill.runtime.server.models import ServedModel, new_id
from gristmill.runtime.server.protocol import ChatRequest, CompletionRequest

__all__ = ["Submission", "check_stream_options", "collect", "submit", "usage"]


@dataclass(frozen=True, slots=True)
class Submission:
    """Prompts that were queued together; `head` holds what every response and chunk of them begins with."""

    head: dict[str, Any]
    requests: Sequence[EngineRequest]
    stream: AnswerStream


def submit(model: ServedModel, prefix: str, kind: str, requests: Sequence[EngineRequest]) -> Submission:
    """Queue prompts for one response of object `kind`. Raises RequestError when there is no room."""
    answer_id = new_id(prefix)
    head = {"id": answer_id, "object": kind, "created": int(time.time()), "model": model.name}
    return Submission(head, requests, model.engine.submit(answer_id, requests))


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
    async for index, delta in submission.stream:
        collectors[index].add(delta)
    return [collector.result() for collector in collectors]


def usage(requests: Sequence[EngineRequest], completion_tokens: int) -> dict[str, int]:
    """Token counts of a response: each prompt once, however many answers it got."""
    prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def check_stream_options(request: CompletionRequest | ChatRequest) -> None:
    """Raise RequestError for options of a stream that was not asked for."""
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream = true", field="stream_options")
