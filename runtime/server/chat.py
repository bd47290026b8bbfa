"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse, Response

from gristmill.runtime.engine import EngineRequest
from gristmill.runtime.errors import RequestError
from gristmill.runtime.outputs import CompletionOutput, OutputDelta, RequestOutput
from gristmill.runtime.sampling.params import MAX_LOGPROBS
from gristmill.runtime.server.answers import Submission, check_stream_options, collect, submit, usage
from gristmill.runtime.server.caller import Caller
from gristmill.runtime.server.events import EventStream, unless_client_leaves
from gristmill.runtime.server.fields import UNSUPPORTED_CHAT
from gristmill.runtime.server.models import ServedModel, find_model, in_worker
from gristmill.runtime.server.parse import parse_request
from gristmill.runtime.server.protocol import ChatRequest, sampling_params
from gristmill.runtime.server.token_text import chat_logprobs
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["chat"]


async def chat(models: Mapping[str, ServedModel], body: Mapping[str, Any], caller: Caller) -> Response:
    """Answer a chat, whole or as a stream. Raises RequestError, ClientDisconnect if the client leaves."""
    request = parse_request(ChatRequest, body, UNSUPPORTED_CHAT)
    check_stream_options(request)
    model = find_model(models, request.model)
    prepared = await in_worker(lambda: _prepare(model, request))
    if request.stream:
        submission = submit(model, "chatcmpl", "chat.completion.chunk", [prepared])
        return EventStream(_chunks(model.tokenizer, request, submission), submission.stream.abort)
    submission = submit(model, "chatcmpl", "chat.completion", [prepared])
    try:
        (result,) = await unless_client_leaves(collect(submission), caller.receive)
    finally:
        submission.stream.abort()
    return JSONResponse(_response(model.tokenizer, submission, result))


def _prepare(model: ServedModel, request: ChatRequest) -> EngineRequest:
    for index, message in enumerate(request.messages):
        if not isinstance(message.get("role"), str):
            raise RequestError(f"messages[{index}] has no role", field="messages", expected="role as text")
    variables = dict(request.chat_template_kwargs)
    if request.documents is not None:
        variables["documents"] = request.documents
    params = sampling_params(request, max_tokens=_max_tokens(request), logprobs=_logprobs(request))
    text = model.tokenizer.apply_chat_template(
        request.messages,
        request.tools,
        add_generation_prompt=request.add_generation_prompt,
        variables=variables,
    )
    try:
        return model.engine.engine.prepare(text, params, add_special_tokens=request.add_special_tokens)
    except RequestError as error:
        if error.field == "prompt":  # the prompt is what the messages were rendered to
            error.field = "messages"
        raise


def _max_tokens(request: ChatRequest) -> int | None:
    given = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(given) > 1:
        raise RequestError(
            "max_tokens and max_completion_tokens differ",
            field="max_tokens",
            found=f"{request.max_tokens} and {request.max_completion_tokens}",
            hint="give one of them",
        )
    return given.pop() if given else None


def _logprobs(request: ChatRequest) -> int | None:
    if request.top_logprobs is None:
        return 0 if request.logprobs else None
    if not request.logprobs:
        raise RequestError("top_logprobs needs logprobs = true", field="top_logprobs")
    if not 0 <= request.top_logprobs <= MAX_LOGPROBS:
        raise RequestError(
            "top_logprobs is invalid",
            field="top_logprobs",
            found=request.top_logprobs,
            expected=f"0 to {MAX_LOGPROBS}",
        )
    return request.top_logprobs


def _response(tokenizer: Tokenizer, submission: Submission, result: RequestOutput) -> dict[str, Any]:
    completion_tokens = sum(len(output.token_ids) for output in result.outputs)
    return {
        **submission.head,
        "choices": [_choice(tokenizer, output) for output in result.outputs],
        "usage": usage(submission.requests, completion_tokens),
    }


def _choice(tokenizer: Tokenizer, output: CompletionOutput) -> dict[str, Any]:
    return {
        "index": output.index,
        "message": {"role": "assistant", "content": output.text, "refusal": None},
        "logprobs": None if output.logprobs is None else chat_logprobs(tokenizer, output.logprobs),
        "finish_reason": output.finish_reason,
    }


async def _chunks(
    tokenizer: Tokenizer, request: ChatRequest, submission: Submission
) -> AsyncGenerator[dict[str, Any], None]:
    head = submission.head | ({"usage": None} if request.include_usage else {})
    begun: set[int] = set()
    completion_tokens = 0
    async for _, delta in submission.stream:
        if delta.error is not None:
            raise delta.error
        completion_tokens += len(delta.token_ids)
        for choice in _delta_choices(tokenizer, delta, first=delta.index not in begun):
            yield {**head, "choices": [choice]}
        begun.add(delta.index)
    if request.include_usage:
        yield {**head, "choices": [], "usage": usage(submission.requests, completion_tokens)}


def _delta_choices(tokenizer: Tokenizer, delta: OutputDelta, *, first: bool) -> Sequence[dict[str, Any]]:
    """The role once, what is new, the reason at the end: each in a chunk of its own, as OpenAI sends them."""
    logprobs = chat_logprobs(tokenizer, delta.logprobs) if delta.logprobs else None
    parts: list[tuple[dict[str, Any], dict[str, Any] | None, str | None]] = []
    if first:
        parts.append(({"role": "assistant", "content": ""}, None, None))
    if delta.text or logprobs:
        parts.append(({"content": delta.text}, logprobs, None))
    if delta.finish_reason is not None:
        parts.append(({}, None, delta.finish_reason))
    return [
        {"index": delta.index, "delta": content, "logprobs": scores, "finish_reason": reason}
        for content, scores, reason in parts
    ]
